from audiomarathon.wings.encoders.xares.tasks import config_of


def librispeech_asr_config(encoder):
    return config_of("librispeech", encoder)
