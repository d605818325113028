"""What the KV cache of a model costs, from its Hugging Face config: per token, and by context length.

python examples/geometry.py config.json            or its directory
python examples/geometry.py                        two configs written out below
"""

import sys

from kvpager.models.base import geometry_of, load_config
from kvpager.units import format_bytes

LLAMA_3_70B = {
    "model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8,
    "dtype": "bfloat16",
}  # fmt: skip
GEMMA_3_27B = {
    "model_type": "gemma3_text", "num_hidden_layers": 62, "hidden_size": 5376, "num_attention_heads": 32,
    "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024, "sliding_window_pattern": 6, "dtype": "bfloat16",
}  # fmt: skip


def main() -> None:
    written = {"Llama 3 70B": LLAMA_3_70B, "Gemma 3 27B": GEMMA_3_27B}
    configs = {path: load_config(path) for path in sys.argv[1:]} or written
    for name, config in configs.items():
        geometry = geometry_of(config, name)
        full, layers = len(geometry.full_layers), len(geometry.layers)
        print(f"{name}: {layers} layers, {full} of them with full attention (analytical)")
        print(f"  one token more {format_bytes(geometry.kv_bytes_per_token):>12}")
        for context_tokens in (4096, 32_768, 131_072):
            print(f"  {context_tokens:>7,} tokens {format_bytes(geometry.kv_bytes(context_tokens)):>12}")


if __name__ == "__main__":
    main()
