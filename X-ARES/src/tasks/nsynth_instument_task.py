from audiomarathon.wings.encoders.xares.tasks import config_of


def nysnthinstument_config(encoder):
    return config_of("nsynthinstument", encoder)
