from audiomarathon.wings.encoders.xares.tasks import config_of


def speechcommandsv1_config(encoder):
    return config_of("speechcommandsv1", encoder)
