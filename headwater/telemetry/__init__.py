"""What a run tells: result files, TensorBoard events, and the display on the terminal."""

from headwater.telemetry.progress import Display, make_display
from headwater.telemetry.results import ResultWriter, read_results
from headwater.telemetry.run_dir import RunLock, make_run_dir
from headwater.telemetry.run_logger import RunLogger, open_run
from headwater.telemetry.tensorboard import TensorBoardWriter

__all__ = [
    "Display",
    "ResultWriter",
    "RunLock",
    "RunLogger",
    "TensorBoardWriter",
    "make_display",
    "make_run_dir",
    "open_run",
    "read_results",
]
