from audiomarathon.wings.encoders.xares.tasks import config_of


def librispeech_male_female_config(encoder):
    return config_of("librispeechmalefemale", encoder)
