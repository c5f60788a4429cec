"""KV budgets: parameters counted again from configurations, figures that engines reported, and the command's contract."""

import json
import os
from fractions import Fraction
from pathlib import Path

import pytest

from opt.cli import run
from opt.core.capacity import GPUS, MODELS, Gpu, Model, capacity, gibibytes, named, parameters_of

GIB = 2**30

# Hidden size, attention heads, feed-forward size, vocabulary of the public configurations; then what is unusual.
GATED = {
    "Llama-2-7b": (4096, 32, 11008, 32000),
    "Llama-2-13b": (5120, 40, 13824, 32000),
    "Llama-2-70b": (8192, 64, 28672, 32000),
    "Llama-3-8B": (4096, 32, 14336, 128256),
    "Llama-3-70B": (8192, 64, 28672, 128256),
    "Llama-3.1-8B": (4096, 32, 14336, 128256),
    "Llama-3.1-70B": (8192, 64, 28672, 128256),
    "Llama-3.1-405B": (16384, 128, 53248, 128256),
    "Llama-3.2-1B": (2048, 32, 8192, 128256, "tied"),
    "Llama-3.2-3B": (3072, 24, 8192, 128256, "tied"),
    "Llama-3.3-70B": (8192, 64, 28672, 128256),
    "CodeLlama-34b": (8192, 64, 22016, 32000),
    "Mistral-7B": (4096, 32, 14336, 32000),
    "Mixtral-8x7B": (4096, 32, 14336, 32000, 8),
    "Qwen2.5-7B": (3584, 28, 18944, 152064, "bias"),
    "Qwen2.5-14B": (5120, 40, 13824, 152064, "bias"),
    "Qwen2.5-32B": (5120, 40, 27648, 152064, "bias"),
    "Qwen2.5-72B": (8192, 64, 29568, 152064, "bias"),
    "Qwen3-8B": (4096, 32, 12288, 151936, "norm"),
    "Qwen3-14B": (5120, 40, 17408, 151936, "norm"),
    "Qwen3-32B": (5120, 64, 25600, 151936, "norm"),
    "Qwen3-30B-A3B": (2048, 32, 768, 151936, "norm", 128),
}
OPT_SIZES = {"OPT-6.7B": 4096, "OPT-13B": 5120, "OPT-66B": 9216}


def gated(model, hidden, heads, ffn, vocabulary, *unusual):
    """Embedding and head (one if tied), and a layer of attention, gated feed-forward (each expert's, and a router) and norms."""
    experts = next((x for x in unusual if isinstance(x, int)), 0)
    d, kv = model.head_dim, model.kv_heads
    layer = 2 * hidden * heads * d + 2 * hidden * kv * d + 2 * hidden + 3 * hidden * ffn * max(experts, 1) + hidden * experts
    layer += (heads + 2 * kv) * d * ("bias" in unusual) + 2 * d * ("norm" in unusual)
    return vocabulary * hidden * (1 if "tied" in unusual else 2) + model.layers * layer + hidden


def opt_model(model, hidden):
    """Tied embedding, 2,050 positions; a layer has four square projections and a feed-forward of 4, all with biases."""
    layer = 4 * hidden * (hidden + 1) + 8 * hidden * hidden + 5 * hidden + 4 * hidden
    return 50272 * hidden + 2050 * hidden + model.layers * layer + 2 * hidden


def deepseek_v2_lite(model):
    """Latent attention (512 + 64), one dense layer, 26 of 64 routed and 2 shared experts."""
    attention = 2048 * 16 * 192 + 2048 * 576 + 512 + 512 * 16 * 256 + 16 * 128 * 2048 + 2 * 2048
    experts = 66 * 3 * 2048 * 1408 + 64 * 2048
    return 2 * 102400 * 2048 + model.layers * attention + 3 * 2048 * 10944 + 26 * experts + 2048


def test_every_model_counts_its_parameters():
    counted = {name: gated(MODELS[name], *size) for name, size in GATED.items()}
    counted |= {name: opt_model(MODELS[name], hidden) for name, hidden in OPT_SIZES.items()}
    counted["DeepSeek-V2-Lite"] = deepseek_v2_lite(MODELS["DeepSeek-V2-Lite"])
    assert counted == {name: model.parameters for name, model in MODELS.items()}


@pytest.mark.parametrize(
    ("name", "bytes_a_token"),
    [
        ("Llama-2-7b", 2 * 32 * 32 * 128 * 2),  # 524,288
        ("Llama-2-70b", 2 * 80 * 8 * 128 * 2),  # 327,680
        ("Llama-3-8B", 131_072),
        ("Llama-3.1-405B", 516_096),
        ("Qwen2.5-7B", 57_344),
        ("OPT-13B", 819_200),
        ("DeepSeek-V2-Lite", 27 * 576 * 2),  # one latent vector for keys and values of all heads
    ],
)
def test_bytes_per_token(name, bytes_a_token):
    big = Gpu(gibibytes(2000))
    assert capacity(MODELS[name], big).per_token == bytes_a_token
    assert capacity(MODELS[name], big, kv_dtype="fp8").per_token == bytes_a_token // 2


def test_a_budget_worked_out_by_hand():
    """20 GiB x 0.9 = 18 GiB, less 5 GiB of weights and 1 GiB: 12 GiB at 2 * 4 * 2 * 8 * 2 = 256 bytes: 50,331,648 tokens."""
    model = Model(5 * 2**29, layers=4, kv_heads=2, head_dim=8)
    found = capacity(model, Gpu(20 * GIB), reserve_gib=1)
    assert (found.usable, found.weights, found.reserve, found.cache) == (18 * GIB, 5 * GIB, GIB, 12 * GIB)
    assert (found.per_token, found.unrounded, found.tokens) == (256, 12 * 2**22, 12 * 2**22)


def test_groups_of_gpus_share_weights_and_heads():
    """Two KV heads: on two GPUs each has one, on four each still has one, and as many tokens fit on all as on one."""
    model = Model(2**30, layers=4, kv_heads=2, head_dim=8)
    one, two, four = (capacity(model, Gpu(20 * GIB), tp=tp, reserve_gib=0) for tp in (1, 2, 4))
    assert [one.per_token, two.per_token, four.per_token] == [256, 128, 128]
    assert [one.weights, two.weights, four.weights] == [2 * GIB, GIB, GIB // 2]
    assert [one.cache, two.cache, four.cache] == [16 * GIB, 17 * GIB, 17 * GIB + GIB // 2]
    latent = Model(2**30, layers=4, kv_heads=1, head_dim=8, latent=True)
    assert [capacity(latent, Gpu(20 * GIB), tp=tp).per_token for tp in (1, 2, 3)] == [64, 64, 64]


def test_blocks_round_down():
    model = Model(1, layers=1, kv_heads=1, head_dim=1)
    gpu = Gpu(4 * 1000 + 2)  # 2 bytes of weights and 1000 tokens of 4 bytes
    exact = [capacity(model, gpu, utilization=1, reserve_gib=0, block=block).tokens for block in (1, 16, 999, 1000)]
    assert exact == [1000, 992, 999, 1000]
    with pytest.raises(ValueError, match=r"less than a block of 1001 tokens \(4,004 bytes\)"):
        capacity(model, gpu, utilization=1, reserve_gib=0, block=1001)


def test_decimal_amounts_are_exact():
    """0.9 of 10 bytes is 9, although the float 0.9 is a little more than 9/10 and 0.7 * 10 a little less than 7."""
    model = Model(1, layers=1, kv_heads=1, head_dim=1)
    gpu = Gpu(10**18)
    assert capacity(model, gpu, utilization="0.9").usable == capacity(model, gpu, utilization=0.9).usable == 9 * 10**17
    assert capacity(model, gpu, utilization=Fraction(7, 10)).usable == 7 * 10**17
    assert gibibytes("0.5") == gibibytes(0.5) == 2**29
    assert parameters_of("8.030261248") == MODELS["Llama-3-8B"].parameters


def test_a_budget_an_engine_reported():
    """vLLM 0.19, Llama-3.1-8B in bf16, one RTX 4090 of 25,250,627,584 bytes, 0.9: 2,588 blocks of 16 tokens.

    0.9 of the memory less 16,060,522,496 bytes of weights and 41,408 * 131,072 of cache leaves 1,237,612,953 bytes: with
    that reserve the budget is the engine's, with the default of 1.25 GiB it is 2 % smaller.
    """
    llama, gpu = MODELS["Llama-3.1-8B"], GPUS["RTX-4090"]
    kept = gpu.memory * 9 // 10 - 2 * llama.parameters - 41_408 * 131_072
    assert kept == 1_237_612_953
    assert capacity(llama, gpu, reserve_gib=Fraction(kept, GIB)).tokens == 2_588 * 16 == 41_408
    assert capacity(llama, gpu).tokens == 40_608


def test_profiling_an_engine_printed():
    """vLLM pull request 10511: Llama-3-8B on 79.22 GiB, of which 71.29 usable; 14.96 GiB of weights, 7.48 with tp 2.

    Besides 1.79 GiB outside torch and 1.26 GiB of activations, which left 53.29 GiB (to its rounding) for the cache.
    """
    llama, gpu = MODELS["Llama-3-8B"], Gpu(gibibytes("79.22"))
    one, two = capacity(llama, gpu, reserve_gib="3.05"), capacity(llama, gpu, tp=2)
    assert [round(found.weights / GIB, 2) for found in (one, two)] == [14.96, 7.48]
    assert one.usable / GIB == pytest.approx(71.29, abs=0.01)
    assert one.cache / GIB == pytest.approx(53.29, abs=0.01)


def test_the_recorded_run():
    """The file of that RTX 4090 run itself, where the public traces are at hand."""
    folder = os.environ.get("KVOPT_DATA")
    path = Path(folder or ".", "llmservingsim", "RTX4090_Llama-3.1-8B_vllm_run_meta.json")
    if not folder or not path.exists():
        pytest.skip("KVOPT_DATA names no folder with llmservingsim")
    meta = json.loads(path.read_text())
    assert meta["hardware"]["device_total_memory_bytes"] == GPUS["RTX-4090"].memory
    reported = meta["kv_cache"]["num_kv_tokens"]
    assert reported == meta["kv_cache"]["num_gpu_blocks"] * meta["kv_cache"]["block_size"]
    utilization = meta["kv_cache"]["gpu_memory_utilization"]
    assert capacity(MODELS["Llama-3.1-8B"], GPUS["RTX-4090"], utilization=utilization).tokens == pytest.approx(reported, rel=0.02)


def test_names():
    for name in ("llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", "LLAMA 3.1 8B", "Meta-Llama-3.1-8B"):
        assert named(MODELS, name) == "Llama-3.1-8B"
    assert named(MODELS, "meta-llama/Llama-2-7b-chat-hf") == "Llama-2-7b"
    assert named(MODELS, "mistralai/Mistral-7B-Instruct-v0.2") == "Mistral-7B"
    assert named(MODELS, "llama-3") is None
    for name in ("h100", "H100 80GB", "nvidia h100-80"):
        assert named(GPUS, name) == "H100-80"
    assert named(GPUS, "rtx4090") == named(GPUS, "GeForce RTX 4090") == "RTX-4090"
    assert named(GPUS, "l4") == "L4"
    assert [named(GPUS, name) for name in ("a100", "", "-", "tpu")] == [None] * 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tp": 0}, "tp = 0: must be at least 1"),
        ({"tp": 3}, "tp = 3: must divide the 8 KV heads"),
        ({"tp": 12}, "tp = 12: must divide the 8 KV heads, or be a multiple"),
        ({"block": 0}, "block = 0"),
        ({"dtype": "int3"}, "dtype = 'int3': must be one of bf16, fp16, fp8"),
        ({"kv_dtype": "fp4"}, "kv_dtype = 'fp4'"),
        ({"utilization": 0}, "utilization = 0: must be above 0"),
        ({"utilization": "1.01"}, "utilization = 1.01"),
        ({"utilization": "90%"}, "utilization = '90%': must be a number"),
        ({"utilization": float("nan")}, "utilization = nan: must be a number"),
        ({"reserve_gib": -1}, "GiB = -1: must not be negative"),
        ({"reserve_gib": 80}, "no room for a KV cache"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        capacity(MODELS["Llama-3-8B"], GPUS["H100-80"], **settings)


def test_no_room_says_how_many_gpus_would_do():
    """405 billion parameters in 16 bits are 756 GiB, 94.5 on each of 8 GPUs that may use 71.2; 16 hold them."""
    with pytest.raises(ValueError, match=r"71\.20 GiB - 94\.50 GiB - 1\.25 GiB = -24\.55 GiB.*; tp 16 leaves room") as error:
        capacity(MODELS["Llama-3.1-405B"], GPUS["H100-80"], tp=8)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="take smaller weights, a larger GPU or more of it"):
        capacity(MODELS["Llama-3.1-405B"], GPUS["L4"], reserve_gib=30)


def document(capsys, *arguments):
    assert run(["capacity", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def refused(capsys, *arguments, code):
    assert run(["capacity", *arguments]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def test_the_verb_shows_the_arithmetic(capsys):
    value = document(capsys, "--model", "llama-3-8b", "--gpu", "h100", "--tp", "2", "--dtype", "FP8")
    assert (value["model"], value["gpu"], value["tp"], value["dtype"], value["kv_dtype"]) == (
        "Llama-3-8B",
        "H100-80",
        2,
        "fp8",
        "bf16",
    )
    assert value["kv_bytes_per_token"] == 65_536
    assert value["kv_cache_bytes"] == value["usable_bytes"] - value["weight_bytes"] - value["reserve_bytes"]
    assert value["tokens"] == value["kv_cache_bytes"] // 65_536 // 16 * 16
    assert run(["capacity", "--model", "llama-3-8b", "--gpu", "h100"]) == 0
    shown = capsys.readouterr().out
    assert "KV cache         71.20 GiB - 14.96 GiB - 1.25 GiB = 54.99 GiB" in shown
    assert "bytes per token  32 layers x 2 x 8 KV heads x 128 x 2 bytes = 131,072" in shown
    assert "KV budget        450,480" in shown


def test_the_verb_takes_models_and_gpus_of_ones_own(capsys):
    own = ["--params-b", "8.030261248", "--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--gpu-gib", "79.11"]
    assert document(capsys, *own)["tokens"] == document(capsys, "--model", "Llama-3-8B", "--gpu", "H100-80")["tokens"]


def test_a_budget_that_is_not_there_is_an_error_of_one_line(capsys):
    error = refused(capsys, "--model", "Llama-2-70b", "--gpu", "A100-80", code=3)
    assert error.count("\n") == 1
    assert "79.22 GiB x 0.9 = 71.30 GiB" in error
    assert "128.48 GiB" in error
    assert "-58.43 GiB" in error
    assert "tp 2 leaves room" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "lama-3-8b", "--gpu", "h100"], "'lama-3-8b' is not known; did you mean Llama-3-8B"),
        (["--model", "Llama-3-8B", "--gpu", "a100"], "A100-80"),
        (["--model", "zzz", "--gpu", "h100"], "kvopt list models"),
        (["--gpu", "h100"], "give --model, or --params-b"),
        (["--model", "Llama-3-8B"], "give --gpu, or --gpu-gib"),
        (["--model", "Llama-3-8B", "--layers", "3", "--gpu", "h100"], "give --model, or"),
        (["--params-b", "8", "--layers", "3", "--gpu", "h100"], "needs --kv-heads, --head-dim too"),
        (["--model", "Llama-3-8B", "--gpu", "h100", "--tp", "0"], "--tp"),
        (["--model", "Llama-3-8B", "--gpu", "h100", "--dtype", "int3"], "--dtype"),
    ],
)
def test_usage_errors(capsys, arguments, message):
    assert message in refused(capsys, *arguments, code=2)


def test_numbers_that_are_none_are_invalid_input(capsys):
    assert "utilization = 'x'" in refused(capsys, "--model", "Llama-3-8B", "--gpu", "h100", "--utilization", "x", code=3)


def test_list_shows_models_and_gpus(capsys):
    for kind, table in (("models", MODELS), ("gpus", GPUS)):
        assert run(["list", kind, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[kind].keys() == table.keys()
