"""Settings of every process: environment FIRSTLIGHT_*, or a TOML file named by FIRSTLIGHT_CONFIG."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, Field, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from core.errors import StartupError
from core.scheduler import BatchingMode

PREFIX = "FIRSTLIGHT_"
DAY_S = 86400
CONFIG_NAME = f"{PREFIX}CONFIG"
REDIS_URL_NAMES = (f"{PREFIX}REDIS_URL", "REDIS_URL")  # the first that is set counts
CLIENT_NAMES = frozenset({CONFIG_NAME, f"{PREFIX}URL"})
ADDRESS = "^(https?://[^/?#@\\s]+(/[^?#\\s]*)?)?$"
SUB_PATH = "^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*/?$"
DEVICE = r"^(auto|cpu|cuda(:\d+)?)$"
FOLDER = "^([A-Za-z0-9_-][A-Za-z0-9_.-]*/)*$"
BUNDLED_MODEL = Path(__file__).resolve().parent.parent / "models" / "storybook" / "bundle"


class Settings(BaseSettings):
    """One model for all roles; each field's description is its documentation."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True, populate_by_name=True)

    host: str = Field("127.0.0.1", description="address the web process listens on")
    port: int = Field(7860, ge=0, le=65535, description="port the web process listens on")
    data_dir: Path = Field(Path(".firstlight"), description="folder for queue, pictures and secrets")
    model: str = Field("storybook", description="profile, folder, .safetensors file or hub id of the model")
    styles: Path | None = Field(None, description="folder of LoRA files to offer beside the model's own styles")
    redis_url: str | None = Field(
        None,
        validation_alias=AliasChoices(*REDIS_URL_NAMES),
        description="Redis or Valkey to use; without it one is started under the data folder",
    )
    public_url: str | None = Field(
        None, pattern=ADDRESS, description="web address (https://…) that people reach the app under, for signed URLs"
    )
    root_path: str = Field("", pattern=SUB_PATH, description="sub-path that a proxy serves the app under, as /app")
    roles: str = Field("preview,final,decode,finish", description="roles of the worker that serve starts; may be empty")
    device: str = Field("auto", pattern=DEVICE, description="where networks run: auto, cpu, cuda or cuda:1; see gpu.md")
    torch_threads: int | None = Field(None, ge=1, description="threads of one network forward; default half the cores")
    max_preview_rows: int = Field(8, ge=1, le=64, description="previews in one denoising batch")
    max_final_rows: int = Field(8, ge=2, le=64, description="network rows in one denoising batch of renders")
    fuse: str | None = Field(None, description="style, as ink or ink:0.8, that a final worker is dedicated to")
    batching: BatchingMode = Field(BatchingMode.STEP, description="step: renders join at any step; cohort: in groups")
    style_slots: int = Field(8, ge=1, description="sets of styles that each pool keeps at hand; more of them wait")
    cache_url: str | None = Field(None, description="Redis that shares prompt embeddings; default the one of the queue")
    embedding_ttl_s: int = Field(86400, ge=0, description="seconds that a shared embedding is kept; 0 shares none")
    embedding_store_mb: int = Field(256, ge=1, description="prompt embeddings shared by all workers, MiB")
    embedding_cache_mb: int = Field(64, ge=1, description="prompt embeddings kept in a worker, MiB")
    url_ttl_s: int = Field(3600, ge=1, le=10**9, description="seconds that a signed URL works")
    s3_bucket: str | None = Field(None, min_length=3, description="S3 bucket for pictures; without it the data folder")
    s3_endpoint: str | None = Field(None, description="S3 service as the app reaches it; without it Amazon's")
    s3_public_endpoint: str | None = Field(None, description="S3 service as browsers reach it, where that differs")
    s3_region: str | None = Field(None, description="region of the bucket; without it what AWS_DEFAULT_REGION says")
    s3_prefix: str = Field("", pattern=FOLDER, description="folder inside the bucket, ending in /")
    s3_expire_days: int | None = Field(None, ge=1, description="days until the bucket deletes a picture; unset: never")
    publish_patience_s: float = Field(
        60.0, ge=0, le=DAY_S, description="seconds that a finished render waits for storage"
    )
    nsfw_threshold: float = Field(0.85, gt=0, le=1, description="image classifier score that withholds a picture")
    lane_capacity: int = Field(64, ge=1, description="renders that may wait at once")
    owner_share: float = Field(0.75, gt=0, le=1, description="of these, how much one owner may have")
    lease_s: float = Field(5.0, gt=0, le=DAY_S, description="seconds without heartbeat until another worker takes over")
    drain_s: float = Field(
        20.0, ge=0, le=DAY_S, description="seconds that a worker may go on with its work after SIGTERM"
    )
    max_attempts: int = Field(3, ge=1, description="times a render is tried before it is failed")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        path = os.environ.get(CONFIG_NAME)
        files = (TomlConfigSettingsSource(settings_cls, toml_file=path),) if path else ()
        return (init_settings, env_settings, *files)


def load_settings(**overrides: Any) -> Settings:
    """Settings from overrides, then environment, then the TOML file.

    Raises: StartupError for unknown names, values out of bounds and a config file that is missing.
    """
    known = {PREFIX + name.upper() for name in Settings.model_fields} | CLIENT_NAMES
    unknown = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
    if unknown:
        raise StartupError(f"unknown setting {', '.join(unknown)}", f"use one of {', '.join(sorted(known))}")
    path = os.environ.get(CONFIG_NAME)
    if path and not Path(path).is_file():
        raise StartupError(f"{CONFIG_NAME} names {path}, which is not a file", "create it or unset the variable")
    try:
        return Settings(**overrides)
    except ValidationError as error:
        causes = "; ".join(f"{'.'.join(map(str, e['loc']))}: {_plain(e)}" for e in error.errors())
        raise StartupError(f"settings: {causes}", "correct the variable or the line in the config file") from None


def redis_url_name() -> str:
    """Where the address of the queue's Redis was given, or is to be, in the words of a remedy."""
    given = next((name for name in REDIS_URL_NAMES if name in os.environ), None)
    file = Path(os.environ.get(CONFIG_NAME, ""))
    if given is None and file.is_file() and "redis_url" in file.read_text(encoding="utf-8"):
        return f"redis_url in {file}"
    return given or REDIS_URL_NAMES[0]


def _plain(error: ErrorDetails) -> str:
    """Pydantic's sentence as one of ours: "Input should be a valid integer, ..." is "must be a valid integer"."""
    if error["type"] == "string_pattern_mismatch":  # nobody reads a pattern
        return f"must be a {Settings.model_fields[str(error['loc'][0])].description}"
    return error["msg"].partition(",")[0].replace("Input should be", "must be").replace("Value error", "is wrong")
