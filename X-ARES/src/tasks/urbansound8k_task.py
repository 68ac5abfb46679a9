from audiomarathon.wings.encoders.xares.tasks import config_of


def urbansound8k_config(encoder):
    return config_of("urbansound8k", encoder)
