from audiomarathon.wings.encoders.xares.tasks import config_of


def finger_snap_config(encoder):
    return config_of("finger_snap", encoder)
