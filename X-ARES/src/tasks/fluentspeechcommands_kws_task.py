from audiomarathon.wings.encoders.xares.tasks import config_of


def fluentspeechcommands_config(encoder):
    return config_of("fluentspeechcommands", encoder)
