from audiomarathon.wings.encoders.xares.tasks import config_of


def finger_snap_config(encoder):
    return config_of("inside_outside_car", encoder)
