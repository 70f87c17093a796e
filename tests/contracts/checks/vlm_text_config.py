"""The draft config of a vision-language model must have a text config to read."""

from transformers import Qwen2_5_VLConfig
from vllm.transformers_utils.config import get_hf_text_config
from vllm.transformers_utils.configs.extract_hidden_states import (
    ExtractHiddenStatesConfig,
)


def main() -> None:
    model = Qwen2_5_VLConfig(text_config={"num_attention_heads": 6, "hidden_size": 96})
    draft = ExtractHiddenStatesConfig(model, eagle_aux_hidden_state_layer_ids=[1])
    text = get_hf_text_config(draft)  # what vLLM reads the draft model's shape from
    assert (text.num_attention_heads, text.hidden_size) == (6, 96)
    assert draft.eagle_aux_hidden_state_layer_ids == [1]
    assert draft.architectures == ["ExtractHiddenStatesModel"]
    assert '"num_attention_heads": 6' in draft.to_json_string()


if __name__ == "__main__":
    main()
