"""What verdicts and the tables of findings are called, wherever they are shown. Touches nothing."""

from __future__ import annotations

DRIFT_WORDS = {
    "stable": "stable: the device was as fast at the end as at the beginning",
    "drifting": "drifting: the device changed its speed during the campaign",
    "throttled": "throttled: the device lowered a frequency cap during the campaign",
    "not_comparable": "not comparable: the baseline cells did not do equal work",
    "unknown": "unknown: too little was measured to tell",
}
OUTCOME_WORDS = {
    "win": "win",
    "loss": "loss",
    "equivalent": "equivalent",
    "inconclusive": "inconclusive: one cannot tell from this run",
    "contaminated": "contaminated: the timing cannot be attributed to the change",
    "confounded": "confounded: the cells differ in something that was not asked for",
    "provisional_win": "provisional win",
    "provisional_loss": "provisional loss",
    "unreadable": "unreadable: no baseline cell can be compared with it",
}

# of tables, by the name that `finding_tables` gives them
FINDING_WORDS = {
    "levels": "memory levels; PASS: ran to its end, no sample of anonymous memory above its limit",
    "levels_memory": "memory that does not depend on the level, and the cgroup's",
    "topk": "top-k by cap: what fewer experts save, and cost",
    "eviction": "eviction policies by cap",
    "identity": "greedy output against plain inference, token by token and byte by byte",
    "cells": "cells whose timing cannot be attributed to what they ran",
    "pairs": "pairs left out",
    "looks": "where it stood at each look",
    "attribution": "ms per token by part; those in the wall time add up to its change",
}
