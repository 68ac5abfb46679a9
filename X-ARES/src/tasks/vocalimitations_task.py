from audiomarathon.wings.encoders.xares.tasks import config_of


def vocalimiations_config(encoder):
    return config_of("vocalimitations", encoder)
