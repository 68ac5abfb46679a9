from audiomarathon.benchmarks.xares.tasks import config_of


def vocalimiations_config(encoder):
    return config_of("vocalimitations", encoder)
