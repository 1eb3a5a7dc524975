"""ORT GenAI's builder with the one change that lets 0.18.0 read a Gemma 3 of transformers 5: its RoPE keys, flat.

    python benchmarks/flat_builder.py OPTIONS-OF-THE-BUILDER

Run with the Python that the builder is installed in. Its package then has the size and the speed that it is meant to
have; whether it is right is not asked here.
"""

import runpy
from typing import Any

import transformers

_read = transformers.AutoConfig.from_pretrained


def flat(*words: Any, **options: Any) -> Any:
    """A configuration whose RoPE is that of its full layers, as the builder looks for it."""
    config = _read(*words, **options)
    ropes = getattr(config, "rope_parameters", None)
    if isinstance(ropes, dict) and "full_attention" in ropes:
        config.__dict__["rope_parameters"] = dict(ropes["full_attention"])
        config.__dict__["rope_local_base_freq"] = ropes["sliding_attention"]["rope_theta"]
    return config


if __name__ == "__main__":
    transformers.AutoConfig.from_pretrained = flat
    runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__", alter_sys=True)
