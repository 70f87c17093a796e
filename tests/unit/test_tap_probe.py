"""The start-up proof on small modules that return what real families return."""

from __future__ import annotations

import types

import pytest

torch = pytest.importorskip("torch")
from torch import nn

from specshim.tap.layers import TapRefused, find_decoder_layers
from specshim.tap.stages import Stage
from specshim.tap.taps import install_taps

TOKENS, HIDDEN, LAYERS = 17, 24, 4


class RMSNorm(nn.Module):
    """As vLLM's: with a residual it adds, in place, and returns both."""

    def __init__(self, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(hidden) + 0.5)

    def forward(self, x, residual=None):
        if residual is None:
            return self.normed(x)
        residual += x
        return self.normed(residual), residual

    def normed(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class DeafNorm(RMSNorm):
    """Accepts a residual and ignores it."""

    def forward(self, x, residual=None):
        return self.normed(x) if residual is None else (self.normed(x), residual)


class Pending(nn.Module):
    """Llama: (h, residual), to be added by whoever comes next."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.mlp = RMSNorm(), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, positions, hidden_states, residual):
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual

    @staticmethod
    def truth(output):
        return output[0] + output[1]


class Stale(Pending):
    """Granite 4: the full stream, and a residual that nobody reads again."""

    def forward(self, positions, hidden_states, residual):
        residual = hidden_states
        hidden_states = residual + self.mlp(self.input_layernorm(hidden_states))
        return hidden_states, residual

    @staticmethod
    def truth(output):
        return output[0]


class Plain(Stale):
    """Falcon-H1: the stream alone."""

    def forward(self, positions, hidden_states, residual=None):
        return super().forward(positions, hidden_states, None)[0]

    @staticmethod
    def truth(output):
        return output


class PostNorm(Plain):
    """OLMo-2: no norm before the mixer; a matrix takes the stream first."""

    def forward(self, positions, hidden_states, residual=None):
        return hidden_states + self.input_layernorm(self.mlp(hidden_states))


class Batched(Plain):
    """vLLM's transformers backend: [1, tokens, hidden]."""

    def forward(self, positions, hidden_states, residual=None):
        return hidden_states + self.mlp(self.input_layernorm(hidden_states))

    @staticmethod
    def truth(output):
        return output[0]


class Planes(Plain):
    """Gemma-3n: [4, tokens, hidden], the first being the active stream."""

    def forward(self, positions, hidden_states, residual=None):
        active = hidden_states[0] + self.mlp(self.input_layernorm(hidden_states[0]))
        return torch.cat([active[None], hidden_states[1:]])

    @staticmethod
    def truth(output):
        return output[0]


class Mixer(nn.Module):
    """A container: takes the stream before any norm does."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, hidden_states):
        return self.proj(hidden_states)


class StaleNormLast(Stale):
    """EXAONE-4: the full stream and a stale residual; the first to look is no norm."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = Mixer()

    def forward(self, positions, hidden_states, residual):
        residual = hidden_states
        hidden_states = residual + self.input_layernorm(self.mlp(hidden_states))
        return hidden_states, residual


class TwiceNorm(RMSNorm):
    """Cohere: gets the stream twice, hands the second through."""

    def forward(self, x, residual=None):
        return self.normed(x) if residual is None else (self.normed(x), residual)


class Parallel(Stale):
    """Cohere: (stream, stale residual), the norm called with one tensor twice."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = TwiceNorm()

    def forward(self, positions, hidden_states, residual):
        normed, residual = self.input_layernorm(hidden_states, hidden_states)
        return residual + self.mlp(normed), residual


class Shared(Plain):
    """Zamba2: a block sees the stream beside the embeddings, the norm sees a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Linear(2 * HIDDEN, HIDDEN)

    def forward(self, positions, hidden_states, residual=None):
        original = torch.ones_like(hidden_states)
        extra = self.block(torch.cat([hidden_states, original], -1))
        mixed = self.input_layernorm(hidden_states + extra)
        return hidden_states + self.mlp(mixed)


class Model(nn.Module):
    """Embedding, layers, final norm; ``finish`` says how the norm is called."""

    def __init__(self, layer=Pending, norm=RMSNorm, finish="norm(h, r)") -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed = nn.Embedding(50, HIDDEN)
        self.vision = nn.ModuleList(nn.Linear(2, 2) for _ in range(LAYERS))
        self.layers = nn.ModuleList(layer() for _ in range(LAYERS))
        self.same = nn.ModuleList(self.layers)  # a second list of the same modules
        self.norm = norm()
        self.finish = finish

    def forward(self, ids):
        h, r = self.embed(ids), None
        if isinstance(self.layers[0], (Batched, Planes)):
            h = h[None].repeat(4 if isinstance(self.layers[0], Planes) else 1, 1, 1)
        positions = torch.arange(len(ids))
        for layer in self.layers:
            out = layer(positions, h, r)
            h, r = out if isinstance(out, tuple) else (out, None)
        if self.finish == "norm(h + r)":
            return self.norm(h + r)
        if r is None or self.finish == "norm(h)":
            return self.norm(h if h.dim() == 2 else h[0])
        return self.norm(h, r)[0]


def runner_of(model: nn.Module):
    """What install_taps needs of a model runner; its dummy run feeds zeros."""

    def dummy_run(tokens: int) -> None:
        with torch.inference_mode():
            model(torch.zeros(tokens, dtype=torch.long))

    return types.SimpleNamespace(
        get_model=lambda: model, _dummy_run=dummy_run, device=torch.device("cpu")
    )


def config(layers: int = LAYERS):
    return types.SimpleNamespace(
        model_config=types.SimpleNamespace(
            get_hidden_size=lambda: HIDDEN,
            get_total_num_hidden_layers=lambda: layers,
            dtype=torch.float32,
        ),
        scheduler_config=types.SimpleNamespace(max_num_batched_tokens=64),
    )


@pytest.fixture(autouse=True)
def one_rank(monkeypatch):
    import sys

    state = types.ModuleType("vllm.distributed.parallel_state")
    state.get_tp_group = lambda: types.SimpleNamespace(world_size=1)
    for name in ("vllm", "vllm.distributed"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.distributed.parallel_state", state)


def truths(model: Model, ids) -> list:
    """The stream entering every layer, by untouched forward hooks."""
    found = []
    hooks = [
        model.layers[0].register_forward_pre_hook(
            lambda m, a: found.append(a[1].reshape(-1, *ids.shape, HIDDEN)[0].clone())
        )
    ]
    hooks += [
        layer.register_forward_hook(lambda m, a, o: found.append(m.truth(o).clone()))
        for layer in model.layers
    ]
    with torch.inference_mode():
        model(ids)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize(
    "model",
    [
        Model(Pending),
        Model(Pending, finish="norm(h + r)"),
        Model(Stale, finish="norm(h)"),
        Model(Stale, norm=DeafNorm),
        Model(Plain),
        Model(PostNorm),
        Model(Batched),
        Model(Planes),
        Model(StaleNormLast, finish="norm(h)"),
        Model(Parallel, norm=TwiceNorm),
        Model(Shared),
    ],
    ids=lambda m: f"{type(m.layers[0]).__name__}-{type(m.norm).__name__}-{m.finish}",
)
def test_every_kind_of_layer_is_recorded_as_its_stream(model):
    ids = torch.randint(0, 50, (31,))
    expected = truths(model, ids)
    asked = (0, 1, 3, LAYERS, 1)
    taps = install_taps(runner_of(model), config(), asked)
    with torch.inference_mode():
        model(ids)
    for slot, layer_id in enumerate(asked):
        torch.testing.assert_close(taps.rows[:31, slot], expected[layer_id])
    assert taps.runs.tolist() == [1] * len(asked)


def test_what_the_model_adds_between_layers_is_in_the_stream():
    """Qwen3-VL's DeepStack: image features, zero in every dummy run."""

    class DeepStack(Model):
        features = torch.zeros(1, HIDDEN)

        def forward(self, ids):
            h, r = self.embed(ids), None
            for layer in self.layers:
                h, r = layer(torch.arange(len(ids)), h, r)
                h = h + self.features
            return self.norm(h, r)[0]

    model, ids = DeepStack(Pending), torch.randint(0, 50, (9,))
    taps = install_taps(runner_of(model), config(), (2,))
    with torch.inference_mode():
        model(ids)
        plain = taps.rows[:9, 0].clone()
        model.features = torch.randn(1, HIDDEN)
        h, r = model.embed(ids), None
        for layer in model.layers[:2]:
            h, r = layer(torch.arange(len(ids)), h, r)
            h = h + model.features
        expected = h + r
        model(ids)
    torch.testing.assert_close(taps.rows[:9, 0], expected)
    assert not torch.allclose(plain, expected)


class Packed(nn.Module):
    """A linear layer of vLLM's CPU build: its matrix is packed away."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0))
        self.packed = [torch.randn(HIDDEN, HIDDEN)]

    def forward(self, x):
        return x @ self.packed[0]


class Averaged(Model):
    """Gemma-3n: after the last layer, the other streams are projected and averaged."""

    def __init__(self) -> None:
        super().__init__(Planes)
        self.unembed = nn.ModuleList(Packed() for _ in range(3))

    def average(self, h):
        return torch.stack(
            [h[0], *(m(x) for m, x in zip(self.unembed, h[1:], strict=True))]
        ).mean(0)

    def forward(self, ids):
        h = self.embed(ids)[None].repeat(4, 1, 1) * torch.arange(1, 5)[:, None, None]
        for layer in self.layers:
            h = layer(torch.arange(len(ids)), h)
        return self.norm(self.average(h))


def test_where_the_streams_end_in_one_the_last_id_is_what_the_final_norm_takes():
    model, ids, seen = Averaged(), torch.randint(0, 50, (9,)), []
    model.norm.register_forward_pre_hook(lambda m, args: seen.append(args[0].clone()))
    taps = install_taps(runner_of(model), config(), (LAYERS, 1))
    with torch.inference_mode():
        model(ids)
    torch.testing.assert_close(taps.rows[:9, 0], seen[-1])
    assert taps.readings[1] == "argument[1] (plane 0)"


class Delayed(Pending):
    """The next layer norms the hidden states before it adds the residual."""

    def forward(self, positions, hidden_states, residual):
        if residual is not None:
            hidden_states = residual + self.input_layernorm(hidden_states)
        return self.mlp(hidden_states), hidden_states


class DelayedModel(Model):
    def forward(self, ids):
        h, r = self.embed(ids), None
        for layer in self.layers:
            h, r = layer(torch.arange(len(h)), h, r)
        return self.norm(h) + r


class DelayedNormLast(StaleNormLast):
    """What looks like EXAONE-4's stale residual is added at the end of the layer."""

    def forward(self, positions, hidden_states, residual):
        out, _ = super().forward(positions, hidden_states, residual)
        return (out if residual is None else out + residual), hidden_states


def test_a_tensor_read_after_the_mixer_is_not_stale():
    with pytest.raises(TapRefused, match=r"and yet aten.add.Tensor reads the other"):
        install_taps(
            runner_of(Model(DelayedNormLast, finish="norm(h)")), config(), (2,)
        )


class Uninitialised(StaleNormLast):
    """Attention without metadata gives whatever is in memory, on vLLM's CPU build."""

    def forward(self, positions, hidden_states, residual):
        out, residual = super().forward(positions, hidden_states, residual)
        return out * float("nan"), residual


def test_garbage_from_attention_does_not_hide_a_stale_residual():
    taps = install_taps(
        runner_of(Model(Uninitialised, finish="norm(h)")), config(), (2, LAYERS)
    )
    assert taps.readings == {2: "argument[1]", LAYERS: "output[0]"}


@pytest.mark.parametrize("layer_id", [2, LAYERS])
def test_a_norm_of_one_tensor_does_not_make_the_other_stale(layer_id):
    with pytest.raises(TapRefused, match=r"and yet aten.add.Tensor reads the other"):
        install_taps(runner_of(DelayedModel(Delayed)), config(), (layer_id,))


@pytest.mark.parametrize("layer_id", [-1, LAYERS + 1])
def test_an_id_out_of_range_is_a_sentence(layer_id):
    with pytest.raises(TapRefused, match=f"ids go from 0 .embeddings. to {LAYERS}"):
        install_taps(runner_of(Model()), config(), (layer_id,))


def test_the_output_is_unchanged_by_the_taps():
    model, ids = Model(Pending), torch.randint(0, 50, (9,))
    with torch.inference_mode():
        before = model(ids)
        install_taps(runner_of(model), config(), (1, 2))
        assert torch.equal(model(ids), before)


def test_rows_beyond_the_buffer_are_padding():
    model = Model(Pending)
    taps = install_taps(runner_of(model), config(), (2,))
    with torch.inference_mode():
        model(torch.zeros(100, dtype=torch.long))
    assert taps.rows.shape[0] == 64 and taps.rows.abs().sum(dim=(1, 2)).gt(0).all()


class Many(Pending):
    def forward(self, positions, hidden_states, residual):
        h, r = super().forward(positions, hidden_states, residual)
        return h, r, h * 2


class Narrow(Pending):
    """A token shard: half the rows."""

    def forward(self, positions, hidden_states, residual):
        h, r = super().forward(positions, hidden_states, residual)
        return h[: len(h) // 2], r[: len(r) // 2]


class Scaled(Pending):
    """Partial sums: what is returned is not what the stream is made of."""

    def forward(self, positions, hidden_states, residual):
        hidden = hidden_states * 2  # "the other rank's half"
        return super().forward(positions, hidden, residual)


class ManyModel(Model):
    def forward(self, ids):
        h, r = self.embed(ids), None
        for layer in self.layers:
            h, r = layer(torch.arange(len(h)), h, r)[:2]
        return self.norm(h, r)


@pytest.mark.parametrize("layer", [Many, Narrow, Scaled])
def test_what_is_not_understood_is_refused_and_left_untouched(layer):
    model = ManyModel(layer)
    with pytest.raises(TapRefused, match=r"layer id 2 of ManyModel cannot be tapped"):
        install_taps(runner_of(model), config(), (2,))
    assert all("forward" not in module.__dict__ for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_layer_count_that_no_list_has_is_refused():
    model = Model(Pending)
    run = runner_of(model)._dummy_run
    with pytest.raises(TapRefused, match="decoder layers of Model were not found"):
        find_decoder_layers(model, LAYERS + 1, lambda: run(TOKENS))


def test_of_nested_lists_the_outer_one_holds_the_layers():
    class Outer(nn.Module):
        def __init__(self, inner) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *args):
            return self.inner(*args)

    model = Model(Pending)
    model.mambas = nn.ModuleList(model.layers)
    model.layers = nn.ModuleList(Outer(inner) for inner in model.mambas)
    del model.same
    run = runner_of(model)._dummy_run
    found = find_decoder_layers(model, LAYERS, lambda: run(TOKENS))
    assert found.name == "layers" and found.modules == tuple(model.layers)


def test_nan_outputs_do_not_hide_the_stream():
    class Poisoned(Pending):
        def forward(self, positions, hidden_states, residual):
            h, r = super().forward(positions, hidden_states, residual)
            return h * float("nan"), r

    model = Model(Poisoned)
    taps = install_taps(runner_of(model), config(), (1, LAYERS))
    assert taps.readings == {
        1: "argument[1] + argument[2]",
        LAYERS: "output[0] + output[1]",
    }


class Half(Model):
    """The first or the second stage of a pipeline; the other's layers are missing."""

    def __init__(self, layer, ours: range) -> None:
        super().__init__(layer)  # the same weights in both: seeded
        del self.same
        self.ours, self.sent = ours, None
        for index in set(range(LAYERS)) - set(ours):
            self.layers[index] = nn.Identity()

    def forward(self, ids):
        h, r = (self.embed(ids), None) if self.ours.start == 0 else self.received(ids)
        for index in self.ours:
            out = self.layers[index](torch.arange(len(h)), h, r)
            h, r = out if isinstance(out, tuple) else (out, None)
        if self.ours.stop < LAYERS:
            self.sent = h, r
            return self.sent
        return (
            self.norm(h) if r is None or self.finish == "norm(h)" else self.norm(h, r)
        )

    def received(self, ids):
        if self.sent is None:  # as in a dummy run: empty tensors
            return torch.zeros(len(ids), HIDDEN), torch.zeros(len(ids), HIDDEN)
        h, r = self.sent
        return h.clone(), None if r is None else r.clone()


@pytest.mark.parametrize("layer", [Pending, Stale, Plain, StaleNormLast, Parallel])
@pytest.mark.parametrize("asked", [(0, 2, 1, 4, 3, 2), (1,), (2, 4)], ids=str)
def test_each_pipeline_stage_records_its_layers(layer, asked):
    ids = torch.randint(0, 50, (31,))
    finish = "norm(h, r)" if layer is Pending else "norm(h)"
    expected = truths(Model(layer, finish=finish), ids)
    stages = [Stage(rank, (0, 2, LAYERS)) for rank in range(2)]
    halves = [Half(layer, stage.layers) for stage in stages]
    for half in halves:
        half.finish = finish
    taps = [
        install_taps(runner_of(half), config(), asked, stage)
        for half, stage in zip(halves, stages, strict=True)
    ]
    with torch.inference_mode():
        halves[1].sent = halves[0](ids)
        halves[1](ids)
    for tapped in taps:
        for column, slot in enumerate(tapped.slots):
            recorded = tapped.rows[:31, column]
            torch.testing.assert_close(recorded, expected[asked[slot]])
        assert tapped.runs.tolist() == [1] * len(tapped.slots)
    assert sorted(taps[0].slots + taps[1].slots) == list(range(len(asked)))


def test_layers_that_are_not_where_the_stage_should_have_them_are_refused():
    half = Half(Pending, range(2))
    with pytest.raises(TapRefused, match="decoder layers of Half were not found"):
        install_taps(runner_of(half), config(), (1,), Stage(0, (0, 3, LAYERS)))
