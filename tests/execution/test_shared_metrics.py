import json
import math

import numpy as np

from headwater.execution.shared_metrics import SharedMetrics, TimerStat


def test_timers_forget_all_but_the_last_ten():
    timer = TimerStat()
    assert timer.mean == 0.0 and timer.mean_throughput == 0.0 and not timer.has_units_processed()
    for duration_s in [100.0] * 5 + [1.0] * 10:
        timer.push(duration_s)
        timer.push_units_processed(5)
    assert timer.mean == 1.0 and timer.mean_throughput == 5.0 and timer.count == 15
    with timer:
        pass
    assert timer.mean < 1.0


def test_save_is_json_and_restores_counters_and_info():
    metrics = SharedMetrics()
    metrics.counters["num_steps_sampled"] += np.int64(5)
    metrics.info["learner"] = {"p": {"kl": np.float32(0.5), "grad": np.ones(2), "bad": math.nan, "o": object}}
    metrics.timers["learn"].push(1.0)
    state = json.loads(json.dumps(metrics.save()))
    again = SharedMetrics()
    again.timers["old"].push(1.0)
    again.restore(state)
    assert again.counters == {"num_steps_sampled": 5} and not again.timers
    assert again.info["learner"]["p"]["kl"] == 0.5 and again.info["learner"]["p"]["grad"] == [1.0, 1.0]
    assert again.counters["new"] == 0
