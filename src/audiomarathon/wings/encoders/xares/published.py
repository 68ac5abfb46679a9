"""X-ARES' published scores, in two tables: "readme" and "first".

"readme" is the table of the README at version 0.1.3; "first" is that of the first README, on mini sets (commit
f61ff0a).
"""

from __future__ import annotations

from collections.abc import Mapping

from audiomarathon.wings.encoders.xares.tasks import TASKS

ENCODERS = ("dasheng", "wav2vec2", "whisper", "data2vec")

_Four = tuple[float, float, float, float]
_Rows = Mapping[str, tuple[_Four, _Four | None]]

#: {task: (scores of the MLP probe, scores of kNN or None if it was not run)}, each in the order of ENCODERS. For
#: librispeech the README also has MLP scores of a later version: .724 .545 .815 .866. Its stated MLP means exceed the
#: means of its rows by .005.
_README: _Rows = {
    "asvspoof2015": ((0.964, 0.924, 0.966, 0.937), (0.869, 0.858, 0.843, 0.942)),
    "clotho": ((0.029, 0.014, 0.038, 0.008), None),
    "cremad": ((0.767, 0.541, 0.572, 0.523), (0.380, 0.221, 0.372, 0.351)),
    "desed": ((0.537, 0.313, 0.127, 0.136), None),
    "esc50": ((0.857, 0.510, 0.528, 0.229), (0.618, 0.081, 0.191, 0.040)),
    "fluentspeechcommands": ((0.946, 0.468, 0.776, 0.978), (0.260, 0.017, 0.032, 0.630)),
    "freemusicarchive": ((0.643, 0.469, 0.581, 0.334), (0.592, 0.251, 0.406, 0.106)),
    "fsd50k": ((0.409, 0.166, 0.262, 0.085), None),
    "fsdkaggle2018": ((0.534, 0.241, 0.241, 0.153), None),
    "gtzan_genre": ((0.851, 0.630, 0.622, 0.448), (0.758, 0.303, 0.350, 0.108)),
    "libricount": ((0.681, 0.583, 0.549, 0.492), (0.311, 0.235, 0.246, 0.176)),
    "librispeech": ((0.608, 0.405, 0.721, 0.893), None),
    "librispeechmalefemale": ((0.986, 0.948, 0.973, 0.752), (0.791, 0.606, 0.617, 0.724)),
    "maestro": ((0.524, 0.180, 0.011, 0.116), None),
    "nsynthinstument": ((0.688, 0.443, 0.532, 0.336), (0.499, 0.251, 0.205, 0.179)),
    "ravdess": ((0.749, 0.442, 0.459, 0.467), (0.408, 0.169, 0.296, 0.313)),
    "speechcommandsv1": ((0.969, 0.714, 0.933, 0.927), (0.903, 0.208, 0.096, 0.852)),
    "urbansound8k": ((0.833, 0.659, 0.687, 0.426), (0.662, 0.339, 0.215, 0.156)),
    "vocalimitations": ((0.253, 0.147, 0.180, 0.128), (0.107, 0.010, 0.016, 0.018)),
    "vocalsound": ((0.910, 0.768, 0.860, 0.803), (0.382, 0.269, 0.405, 0.308)),
    "voxceleb1": ((0.780, 0.340, 0.388, 0.105), (0.262, 0.003, 0.010, 0.033)),
    "voxlingua33": ((0.814, 0.553, 0.873, 0.620), (0.376, 0.034, 0.360, 0.058)),
    "key_scratching": ((0.999, 0.983, 0.985, 0.909), (0.955, 0.923, 0.691, 0.550)),
    "finger_snap": ((0.870, 0.872, 0.861, 0.808), (0.848, 0.787, 0.401, 0.461)),
    "inside_outside_car": ((0.972, 0.928, 0.866, 0.869), (0.798, 0.575, 0.730, 0.588)),
    "liveenv": ((0.986, 0.955, 0.887, 0.759), None),
    "subway_broadcast": ((0.972, 0.930, 0.942, 0.869), (0.949, 0.533, 0.884, 0.530)),
}

_FIRST: _Rows = {
    "asvspoof2015": ((0.956, 0.914, 0.885, 0.892), (0.833, 0.611, 0.600, 0.919)),
    "clotho": ((0.033, 0.018, 0.029, 0.006), None),
    "cremad": ((0.772, 0.568, 0.600, 0.566), (0.381, 0.175, 0.382, 0.325)),
    "desed": ((0.532, 0.081, 0.125, 0.137), None),
    "esc50": ((0.869, 0.579, 0.614, 0.249), (0.621, 0.091, 0.191, 0.037)),
    "fluentspeechcommands": ((0.916, 0.417, 0.878, 0.962), (0.025, 0.008, 0.032, 0.156)),
    "freemusicarchive": ((0.640, 0.518, 0.595, 0.360), (0.589, 0.135, 0.396, 0.126)),
    "fsd50k": ((0.408, 0.165, 0.225, 0.074), None),
    "fsdkaggle2018": ((0.557, 0.352, 0.478, 0.196), None),
    "gtzan_genre": ((0.869, 0.681, 0.751, 0.495), (0.753, 0.347, 0.504, 0.119)),
    "libricount": ((0.688, 0.605, 0.549, 0.507), (0.310, 0.241, 0.253, 0.186)),
    "librispeech": ((0.612, 0.001, 0.802, 0.860), None),
    "librispeechmalefemale": ((0.859, 0.703, 0.877, 0.692), (0.493, 0.552, 0.586, 0.632)),
    "nsynthinstument": ((0.651, 0.404, 0.408, 0.266), (0.441, 0.219, 0.211, 0.104)),
    "ravdess": ((0.725, 0.440, 0.460, 0.469), (0.369, 0.171, 0.287, 0.289)),
    "speechcommandsv1": ((0.967, 0.805, 0.955, 0.930), (0.903, 0.208, 0.096, 0.850)),
    "urbansound8k": ((0.835, 0.676, 0.719, 0.443), (0.662, 0.334, 0.214, 0.153)),
    "vocalimitations": ((0.238, 0.108, 0.197, 0.112), (0.031, 0.006, 0.017, 0.008)),
    "vocalsound": ((0.910, 0.791, 0.871, 0.807), (0.336, 0.265, 0.417, 0.295)),
    "voxceleb1": ((0.512, 0.069, 0.215, 0.043), (0.035, 0.002, 0.007, 0.001)),
    "voxlingua33": ((0.782, 0.492, 0.862, 0.577), (0.340, 0.014, 0.207, 0.050)),
}

TABLES: Mapping[str, _Rows] = {"readme": _README, "first": _FIRST}

#: The means over public tasks that each table states, for MLP and for kNN.
STATED: Mapping[str, tuple[_Four, _Four]] = {
    "readme": ((0.699, 0.490, 0.632, 0.598), (0.504, 0.262, 0.299, 0.388)),
    "first": ((0.676, 0.395, 0.575, 0.492), (0.387, 0.256, 0.240, 0.322)),
}

#: Weights of the first README ("test set size"): numbers of test batches, for tasks whose batches have changed since.
#: The numbers for its mini ASVspoof and for LibriSpeech are not on record. With the numbers here, the means of its rows
#: equal its stated means to within 0.004, except the mean of wav2vec2's kNN, which is 0.213.
_FIRST_BATCHES = {"asvspoof2015": 160, "clotho": 41, "librispeech": 164}


def published(table: str, encoder: str, task: str) -> tuple[float | None, float | None]:
    """Return (MLP's score, kNN's score) that X-ARES published for an encoder on a task; None for an unpublished score.

    `task` is the task's name.
    """
    place = ENCODERS.index(encoder)
    mlp, knn = TABLES[table].get(task, (None, None))
    return mlp and mlp[place], knn and knn[place]


def weight(table: str, task: str) -> int:
    """Return a task's weight in the mean scores of a published table.

    In the table "first", the weight is the task's number of test batches. In "readme", X-ARES' authors set it by hand.
    """
    xares_task = next(candidate for candidate in TASKS if candidate.name == task)
    if table == "first":
        return _FIRST_BATCHES.get(task, -(-xares_task.n_test // xares_task.recipe.batch))
    return xares_task.recipe.weight


def published_mean(table: str, encoder: str, probe: int, *, weighted: bool = True) -> float:
    """Return an encoder's mean score over the public tasks in a published table.

    `probe` is 0 for MLP, 1 for kNN. Tasks have the table's weights, or equal weights if `weighted` is false.
    """
    public = [task.name for task in TASKS if not task.private]
    rows = {task: value for task in public if (value := published(table, encoder, task)[probe]) is not None}
    each = {task: weight(table, task) if weighted else 1 for task in rows}
    return sum(rows[task] * each[task] for task in rows) / sum(each.values())
