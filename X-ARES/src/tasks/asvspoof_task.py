from audiomarathon.wings.encoders.xares.tasks import config_of


def asvspoof2015_config(encoder):
    return config_of("asvspoof2015", encoder)
