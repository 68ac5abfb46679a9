from audiomarathon.benchmarks.xares.tasks import config_of


def nysnthinstument_config(encoder):
    return config_of("nsynthinstument", encoder)
