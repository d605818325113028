"""The plan: ranges that hold, one model for plan and sweep, users at the service level, and refusals to guess."""

import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvpager.errors import BadInput
from kvpager.evidence import Evidence, Quantity
from kvpager.hardware import load
from kvpager.models import builtin_names, resolve
from kvpager.plan.assumptions import DEFAULT
from kvpager.plan.curve import HitCurve
from kvpager.plan.evaluate import Explained, as_json, asked
from kvpager.plan.load import load_of
from kvpager.plan.service import serve, site_of
from kvpager.plan.single import NOT_DERIVABLE, headline_lines, plan
from kvpager.plan.sweeping import sweep

SYSTEMS = sorted(load().systems)
CURVE = HitCurve((0.01, 0.05, 0.1, 0.2), (0.3, 0.6, 0.8, 0.9), 0.1, "a recording, blend, topk_mass")
few = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def quantities(document, path=""):
    if isinstance(document, Quantity):
        yield path, document
    elif isinstance(document, dict):
        for key, value in document.items():
            yield from quantities(value, f"{path}.{key}")


def all_inputs(quantity):
    yield quantity
    for part in quantity.inputs:
        yield from all_inputs(part)


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_number_says_unit_label_and_where_it_comes_from_and_its_range_holds_it(name, catalogue, llama):
    document = plan(llama, catalogue.systems[name], 32768, 4, read_fraction=0.1)
    found = dict(quantities(document))
    assert len(found) > 30
    for path, quantity in found.items():
        assert quantity.unit, path
        assert quantity.labels, path
        assert quantity.formula or quantity.source, path
        low, high = quantity.ends
        assert low <= quantity.value <= high, path
        if any(part.is_range for part in quantity.inputs):
            assert quantity.low is not None, f"{path} hides a range"
        assert quantity.evidence <= min((part.evidence for part in quantity.inputs), default=Evidence.MEASURED), path
    json.dumps(as_json(document), allow_nan=False)


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_sweep_is_the_plan_point_by_point(name, catalogue, llama):
    system = catalogue.systems[name]
    contexts, users, read = np.array([1024, 30_000, 131_072]), np.array([[1], [7], [40]]), 0.2
    table = sweep(llama, system, contexts, users, read)
    for row, n in enumerate(users[:, 0]):
        for column, tokens in enumerate(contexts):
            answer = plan(llama, system, int(tokens), int(n), read_fraction=read)
            one = {key: values[row, column] for key, values in table.items()}
            assert one["token_s"] == answer["answers"]["token_s"].value
            assert one["meets_slo"] == answer["answers"]["meets_slo"]
            assert one["users_by_capacity"] == answer["answers"]["users_by_capacity"].value
            assert one["miss_bytes"] == answer["step"]["miss_bytes"].value
            assert one["usd_per_million_tokens"] == pytest.approx(answer["cost"]["usd_per_million_tokens"].value)


@given(
    st.sampled_from(SYSTEMS), st.integers(512, 131_072), st.integers(1, 40), st.floats(0.02, 1.0),
    st.lists(st.floats(0, 1), min_size=9, max_size=9),
)  # fmt: skip
@few
def test_whatever_the_assumptions_are_within_their_ranges_the_answer_is_within_its_own(name, context, users, read, inside):
    system, facts = load().systems[name], resolve("llama-3.1-8b")
    whole = plan(facts, system, context, users, read_fraction=read)
    ranged = [key for key in DEFAULT.__dataclass_fields__ if getattr(DEFAULT, key).is_range]
    chosen = {}
    for key, share in zip(ranged, inside, strict=False):
        low, high = getattr(DEFAULT, key).ends
        chosen[key] = low + share * (high - low)
    point = plan(facts, system, context, users, read_fraction=read, assumptions=DEFAULT.but(**chosen))
    for section, key in (
        ("answers", "token_s"),
        ("answers", "users_at_slo"),
        ("cost", "usd_per_million_tokens"),
        ("prefill", "prefill_s"),
    ):
        low, high = whole[section][key].ends
        assert low * (1 - 1e-9) <= point[section][key].value <= high * (1 + 1e-9), key


@given(st.sampled_from(SYSTEMS), st.floats(0.02, 1.0))
@few
def test_more_users_or_more_context_never_make_a_token_faster(name, read):
    system, facts = load().systems[name], resolve("llama-3.1-70b")
    users, contexts = np.arange(1, 60), np.geomspace(1024, 131_072, 40)
    for table in (sweep(facts, system, 65_536, users, read), sweep(facts, system, contexts, 8, read)):
        time = table["token_s"]
        assert np.all((time[1:] >= time[:-1] * (1 - 1e-9)) | np.isinf(time[1:]))
        if system.strategy in ("tiered", "resident"):
            assert np.all(np.diff(table["users_by_capacity"]) <= 0)


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("slo", [0.03, 0.1, 0.5])
def test_users_at_the_service_level_are_those_found_one_by_one(name, slo, catalogue, llama):
    system = catalogue.systems[name]
    answers = plan(llama, system, 131_072, 1, read_fraction=0.05, slo_s=slo)["answers"]
    table = sweep(llama, system, 131_072, np.arange(1, 400), 0.05, slo_s=slo)
    slow = int(np.argmin(table["meets_slo"])) if not table["meets_slo"].all() else 399
    assert answers["users_at_slo"].value == slow or (slow == 399 and answers["users_at_slo"].value >= 399)
    stopped = answers["binding_constraint"]
    assert stopped.startswith("capacity") == (answers["users_at_slo"].value == answers["users_by_capacity"].value)


def test_without_reads_or_hits_a_tiered_system_is_not_derivable_and_says_why(catalogue, llama):
    answers = plan(llama, catalogue.systems["note-000-cxl"], 131_072, 16)["answers"]
    assert answers["users_at_slo"] == answers["token_s"] == NOT_DERIVABLE
    assert "hit curve" in NOT_DERIVABLE
    assert answers["users_by_capacity"].value == 372
    assert plan(llama, catalogue.systems["b200x4-tp"], 131_072, 4)["answers"]["users_at_slo"].value >= 9  # dense, in HBM


def test_dense_attention_hits_only_what_hbm_holds(catalogue, llama):
    step = plan(llama, catalogue.systems["note-000-cxl"], 131_072, 16, read_fraction=1.0)["step"]
    assert step["miss_share"].value == pytest.approx(1 - step["hbm_share"].value)
    assert step["miss_share"].ends == (pytest.approx(1 - step["hbm_share"].high), pytest.approx(1 - step["hbm_share"].low))
    assert step["step_s"].value > 9  # note 000's careful reading: 640 GB a step over 64 GB/s


def test_a_hit_curve_replaces_the_guess_and_its_label_and_source_travel(catalogue, llama):
    guess = plan(llama, catalogue.systems["note-000-cxl"], 131_072, 4, read_fraction=0.1)
    known = plan(llama, catalogue.systems["note-000-cxl"], 131_072, 4, hit_curve=CURVE)
    low, high = known["step"]["miss_share"].ends
    assert low < high  # how much HBM holds is still a range
    assert high - low < 0.1 < 1 - 0 == guess["step"]["miss_share"].ends[1] - guess["step"]["miss_share"].ends[0]
    expected = 1 - np.interp(known["step"]["hbm_share"].value, [0, *CURVE.hbm_shares, 1], [0, *CURVE.byte_hit_ratios, 1])
    assert known["step"]["miss_share"].value == pytest.approx(expected)
    assert Evidence.SIMULATED in known["answers"]["token_s"].labels
    assert "a recording, blend, topk_mass" in "\n".join(headline_lines(known))
    with pytest.raises(BadInput, match="hit curve was measured with read_fraction"):
        plan(llama, catalogue.systems["note-000-cxl"], 131_072, 4, hit_curve=CURVE, read_fraction=0.2)


@pytest.mark.parametrize(
    "bad",
    [((0.1, 0.05), (0.1, 0.2), 0.1), ((0.1,), (0.1, 0.2), 0.1), ((), (), 0.1), ((0.1,), (1.2,), 0.1), ((0.1,), (0.5,), 0.0)],
)
def test_a_hit_curve_that_cannot_be_is_refused(bad):
    with pytest.raises(BadInput, match="hit curve"):
        HitCurve(*bad, "x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context_tokens": 0}, "at least 1"),
        ({"users": 0}, "at least 1"),
        ({"read_fraction": 0.0}, r"not in \(0, 1\]"),
        ({"read_fraction": 5.0}, "1 is dense"),
        ({"slo_s": 0.0}, "positive"),
    ],
)
def test_a_question_out_of_range_is_refused(change, message, catalogue, llama):
    asked = {"context_tokens": 4096, "users": 1, "read_fraction": 0.1} | change
    with pytest.raises(BadInput, match=message):
        plan(llama, catalogue.systems["b200-hbm"], asked.pop("context_tokens"), asked.pop("users"), **asked)
    if "slo_s" not in change:
        with pytest.raises(BadInput, match="sweep"):
            sweep(
                llama,
                catalogue.systems["b200-hbm"],
                *({"context_tokens": 4096, "users": 1, "read_fraction": 0.1} | change).values(),
            )


def test_an_assumption_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(BadInput, match="no assumption 'mfx': use one of mfu"):
        DEFAULT.but(mfx=0.4)
    assert DEFAULT.but(mfu=0.9).mfu.ends == (0.9, 0.9)


@pytest.mark.parametrize("name", builtin_names())
def test_every_built_in_model_can_be_planned(name, catalogue):
    facts = resolve(name)
    if facts.params_total is None:
        with pytest.raises(BadInput, match="give --params"):
            load_of(facts)
        return
    document = plan(facts, catalogue.systems["b200-host-cxl"], 4096, 2, read_fraction=0.5)
    each = document["capacity"]["kv_bytes_per_user"].value
    assert each == pytest.approx(facts.geometry.kv_bytes(4096), rel=1e-4 if facts.geometry.family == "deepseek_v4" else 1e-9)
    assert math.isfinite(document["answers"]["token_s"].value)


def test_a_mixture_of_experts_reads_few_weights_for_one_user_and_nearly_all_for_many(catalogue):
    load_, of = load_of(resolve("qwen3-30b-a3b")), Explained()
    site = site_of(of, load_, catalogue.systems["b200-hbm"], DEFAULT, asked("context_tokens", 1024, "tokens"))

    def weights(n):
        step = serve(of, site, asked("users", n, "users"), asked("read_fraction", 1.0, "1")).step
        return next(part for part in all_inputs(step.memory_s) if part.name == "weights_read_bytes").value

    assert weights(1) == pytest.approx(2 * load_.active_params.value)
    assert 0.97 < weights(40) / (2 * load_.params.value) < 1


def test_the_derivation_names_every_step_once_with_unit_and_label(catalogue, llama):
    lines = headline_lines(plan(llama, catalogue.systems["note-000-cxl"], 131_072, 16, read_fraction=0.0555))
    text = "\n".join(lines)
    for step in (
        "kv_bytes_per_user = 42.95 GB",
        "step_s = ",
        "hbm_share = ",
        "users_at_slo = ",
        "tco_usd = $111,389",
        "exposed_s =",
    ):
        assert step in text
    full = [line.strip() for line in lines if not line.endswith("(above)")]
    assert len(full) == len(set(full))
    assert all("[" in line for line in full)


def test_the_warnings_name_what_a_reader_must_not_miss(catalogue, llama):
    warned = "\n".join(plan(llama, catalogue.systems["note-000-cxl"], 2**20, 400, read_fraction=0.05)["warnings"])
    for word in ("the model's 131,072", "the output changes", "no such machine", "do not fit"):
        assert word in warned
