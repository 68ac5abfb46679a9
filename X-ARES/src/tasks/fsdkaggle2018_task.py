from audiomarathon.wings.encoders.xares.tasks import config_of


def fsdkaggle2018_config(encoder):
    return config_of("fsdkaggle2018", encoder)
