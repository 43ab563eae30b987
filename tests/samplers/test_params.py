"""Parameters: ranges, and the defaults that a model file brings."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from llamapy.core.errors import UsageError
from llamapy.samplers.chain import Chain, SamplerParams


def test_defaults_are_those_of_llama_cpp() -> None:
    p = SamplerParams()
    assert (p.seed, p.temp, p.top_k, p.top_p, p.min_p, p.typ_p) == (-1, 0.8, 40, 0.95, 0.05, 1.0)
    assert (p.dynatemp_range, p.dynatemp_exponent, p.top_n_sigma, p.min_keep) == (0, 1, -1, 0)
    assert (p.xtc_probability, p.xtc_threshold) == (0, 0.1)
    assert (p.penalty_last_n, p.penalty_repeat, p.penalty_freq, p.penalty_present) == (64, 1, 0, 0)
    assert (p.dry_multiplier, p.dry_base, p.dry_allowed_length) == (0, 1.75, 2)
    assert (p.dry_penalty_last_n, p.dry_sequence_breakers) == (64, ("\n", ":", '"', "*"))
    assert (p.mirostat, p.mirostat_tau, p.mirostat_eta) == (0, 5, 0.1)
    assert (p.adaptive_target, p.adaptive_decay) == (-1, 0.9)
    with pytest.raises(dataclasses.FrozenInstanceError):
        p.temp = 1


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"temp": -0.1}, "--temp -0.1: must be a number 0 or more"),
        ({"temp": float("nan")}, "--temp nan"),
        ({"temp": float("inf")}, "--temp inf"),
        ({"temp": "hot"}, "--temp 'hot'"),
        ({"top_p": 1.01}, "--top-p 1.01: must be a number from 0 to 1"),
        ({"min_p": -0.5}, "--min-p"),
        ({"typ_p": 2}, "--typical"),
        ({"top_k": 40.5}, "--top-k 40.5: must be a whole number -1 or more"),
        ({"top_k": True}, "--top-k True"),
        ({"seed": 2**32}, "--seed 4294967296: must be a whole number from -1 to 4294967295"),
        ({"penalty_repeat": 0}, "--repeat-penalty 0: must be a number above 0"),
        ({"penalty_repeat": 1e-44}, "--repeat-penalty"),
        ({"penalty_last_n": -2}, "--repeat-last-n"),
        (
            {"penalty_freq": float("inf")},
            "--frequency-penalty inf: must be a number that is finite",
        ),
        ({"xtc_probability": 1.5}, "--xtc-probability"),
        ({"dry_base": 0.9}, "--dry-base"),
        ({"mirostat": 3}, "--mirostat 3: must be a whole number from 0 to 2"),
        ({"adaptive_decay": 1.0}, "--adaptive-decay"),
        ({"min_keep": -1}, "--min-keep"),
        ({"logit_bias": {-1: 0.0}}, "--logit-bias: -1"),
        ({"logit_bias": {1: float("nan")}}, "--logit-bias 1: nan"),
        ({"logit_bias": {1: float("inf")}}, "--logit-bias 1: inf"),
    ],
)
def test_a_value_out_of_range_names_the_option_and_its_range(values: dict, text: str) -> None:
    with pytest.raises(UsageError) as error:
        SamplerParams(**values)
    assert text in str(error.value)
    assert error.value.exit_code == 2


def test_the_file_gives_defaults_that_the_user_overrides() -> None:
    metadata = {
        "general.sampling.temp": 0.25,
        "general.sampling.top_k": 7,
        "general.sampling.top_p": 0.5,
        "general.sampling.penalty_repeat": 1.1,
        "general.sampling.mirostat": 1,
        "general.sampling.sequence": "top-k;bogus;temp",
        "general.sampling.typ_p": 0.1,  # not one of the keys that are read
        "general.name": "x",
    }
    p = SamplerParams.from_metadata(metadata, top_p=0.9, temp=None, seed=5)
    assert (p.temp, p.top_k, p.top_p, p.penalty_repeat) == (0.25, 7, 0.9, 1.1)
    assert (p.mirostat, p.typ_p, p.seed, p.min_p) == (1, 1.0, 5, 0.05)
    assert p.order == ("top_k", "temperature")
    assert SamplerParams.from_metadata({}) == SamplerParams()
    with pytest.raises(UsageError, match="--top-p"):
        SamplerParams.from_metadata(metadata, top_p=7)
    with pytest.raises(UsageError, match="no such sampling parameter: tmep"):
        SamplerParams.from_metadata({}, tmep=1)


def test_a_bad_default_in_the_file_is_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad = {"temp": -1.0, "top_k": "many", "top_p": float("nan"), "min_p": [1], "mirostat": 9}
    with caplog.at_level(logging.WARNING, "llamapy"):
        p = SamplerParams.from_metadata({f"general.sampling.{k}": v for k, v in bad.items()})
    assert p == SamplerParams()
    assert len(caplog.records) == len(bad)


def test_a_random_seed_is_told() -> None:
    seeds = {Chain(SamplerParams(), 10).seed for _ in range(20)}
    assert len(seeds) == 20 and all(0 <= seed < 2**32 - 1 for seed in seeds)
    assert Chain(SamplerParams(seed=0), 10).seed == 0
    assert Chain(SamplerParams(seed=2**32 - 1), 10).seed != 2**32 - 1
