"""What is handed on carries no secret that can be told for one, and loses nothing else."""

from __future__ import annotations

import time

import pytest

from supervisor.core.sanitize import without_secrets


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("HF_TOKEN=hf_abcdefghijklmnopqrstuvwx", "HF_TOKEN=***"),
        ("  WANDB_API_KEY: 0123456789abcdef0123", "  WANDB_API_KEY: ***"),
        ("train.py --api-key sekrit-word --epochs 3", "train.py --api-key *** --epochs 3"),
        ('{"password": "correct horse", "epochs": 3}', '{"password": ***, "epochs": 3}'),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("mysql://night:owl@db/train", "mysql://night:***@db/train"),
        ("pushed with ghp_0123456789abcdefghijklmnopqrstuvwxyz", "pushed with ***"),
        ("AKIAIOSFODNN7EXAMPLE in the log", "*** in the log"),
        ("https://hooks.slack.com/services/T0/B0/xyz", "https://hooks.slack.com/services/***"),
    ],
)
def test_a_secret_is_hidden_and_its_place_is_seen(text: str, kept: str) -> None:
    assert without_secrets(text) == kept


def test_a_private_key_goes_whole_even_where_its_end_was_cut() -> None:
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1r\n"
    assert without_secrets(f"before\n{key}") == "before\n***"


@pytest.mark.parametrize(
    "text",
    [
        "amdgpu 0000:0a:00.0: GPU reset begin!",
        "epoch 3/50  box_loss 1.204  tokens/s 3120",
        "tokenizer.json: loaded",
        "[drm] PSP loading VCN firmware, key rotation off",
        "https://docs.ultralytics.com/modes/train/",
    ],
)
def test_what_is_no_secret_stays_as_it_was(text: str) -> None:
    assert without_secrets(text) == text


PIECES = (
    "x",
    "1a",
    "a_",
    "a-",
    "-",
    "--token-",
    "token",
    "token ",
    "token=",
    "eyJ-",
    "eyJaaaaaaaaa.",
    "sk-",
    "://a:",
    "'\"",
)


@pytest.mark.alone(reason="compares processor time with a limit")
@pytest.mark.parametrize("piece", PIECES)
def test_a_long_text_takes_a_time_in_proportion_to_its_length(piece: str) -> None:
    """A search holds every other thread of the daemon up: 16,000 letters x took half a minute."""
    text = piece * (200_000 // len(piece))
    began_s = time.process_time()
    without_secrets(text)
    assert time.process_time() - began_s < 2.0
