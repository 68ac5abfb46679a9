"""Check replies against rubrics, called like the original's script: python judge.py --model JUDGE … (see --help)."""

from audiomarathon.wings.lalm.experiments import judge_door

judge_door()
