"""Experience in files: `output` writes what is sampled, `input` reads it back in place of an env.

    from headwater.offline import ParquetReader, ParquetWriter, MinariReader, MinariWriter

`make_input(worker)` and `make_output(worker)` are what a worker's settings become. Needs the extra `offline`.
"""

from headwater.offline.context import EndOfInput, IOContext, OfflineError
from headwater.offline.estimators import ImportanceSampling, OffPolicyEstimator, WeightedImportanceSampling
from headwater.offline.minari_reader import MinariReader
from headwater.offline.minari_writer import MinariWriter
from headwater.offline.mixing import CallableReader, MixedReader, ShuffledReader
from headwater.offline.postprocessing import postprocess
from headwater.offline.reader import InputReader, ParquetReader
from headwater.offline.sources import make_reader, make_writer
from headwater.offline.workers import OfflineInput, OfflineOutput, make_input, make_output
from headwater.offline.writer import OutputWriter, ParquetWriter

__all__ = [
    "CallableReader", "EndOfInput", "IOContext", "ImportanceSampling", "InputReader", "MinariReader", "MinariWriter",
    "MixedReader", "OffPolicyEstimator", "OfflineError", "OfflineInput", "OfflineOutput", "OutputWriter",
    "ParquetReader", "ParquetWriter", "ShuffledReader", "WeightedImportanceSampling", "make_input", "make_output",
    "make_reader", "make_writer", "postprocess",
]  # fmt: skip
