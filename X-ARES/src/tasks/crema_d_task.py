from audiomarathon.wings.encoders.xares.tasks import config_of


def cremad_config(encoder):
    return config_of("cremad", encoder)
