"""What deploy/ says: the right shape by the published schemas, and true of this program."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from app.probe import What
from app.roles import ROLES
from core.metrics import POOLS, Metrics
from core.recipe import model_name
from core.settings import PREFIX, Settings
from sampling.profile import load_profile
from shared_cache import keys
from shared_cache.lanes import STANDARD, decode_stage
from tests.conftest import BUNDLE, ROOT
from tests.deploy.promql import selectors

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
KUBERNETES_VERSION = "1.34"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
MANIFESTS: list[dict[str, Any]] = [
    document for name in KUSTOMIZATION["resources"] for document in yaml.safe_load_all((KUBERNETES / name).read_text())
]
SETTINGS = {PREFIX + name.upper() for name in Settings.model_fields}
OTHERS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "FORWARDED_ALLOW_IPS", "REDIS_PASSWORD"}  # boto3's, uvicorn's

# Fields of keda.sh/v1alpha1, as far as we use them: name → type, or the fields below.
# Source: https://keda.sh/docs/latest/, reference/scaledobject-spec/, scalers/redis-streams/ and scalers/prometheus/
BEHAVIOR = {"stabilizationWindowSeconds": int, "policies": [{"type": str, "value": int, "periodSeconds": int}]}
TRIGGER = {"type": str, "name": str, "metricType": str, "authenticationRef": {"name": str}, "metadata": dict}
SCALED_OBJECT = {
    "scaleTargetRef": {"name": str},
    "pollingInterval": int,
    "cooldownPeriod": int,
    "minReplicaCount": int,
    "maxReplicaCount": int,
    "fallback": {"failureThreshold": int, "replicas": int},
    "advanced": {
        "horizontalPodAutoscalerConfig": {"behavior": {"scaleDown": BEHAVIOR, "scaleUp": BEHAVIOR}},
        "scalingModifiers": {"formula": str, "target": str, "activationTarget": str, "metricType": str},
    },
    "triggers": [TRIGGER],
}
AUTHENTICATION = {"secretTargetRef": [{"parameter": str, "name": str, "key": str}]}
KEDA = {"ScaledObject": SCALED_OBJECT, "TriggerAuthentication": AUTHENTICATION}
METADATA = {
    "redis-streams": {"address", "stream", "streamLength", "databaseIndex", "enableTLS"},
    "prometheus": {"serverAddress", "query", "threshold", "activationThreshold"},
}


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in MANIFESTS if one["kind"] == kind}


DEPLOYMENTS, SCALED = of_kind("Deployment"), of_kind("ScaledObject")
WORKERS = [name for name in DEPLOYMENTS if name != "firstlight-web"]
ours = pytest.mark.parametrize("name", sorted(DEPLOYMENTS))
ours_that_work = pytest.mark.parametrize("name", WORKERS)
scaled = pytest.mark.parametrize("name", sorted(SCALED))


def pod(name: str) -> dict[str, Any]:
    found: dict[str, Any] = DEPLOYMENTS[name]["spec"]["template"]["spec"]
    return found


def container(name: str) -> dict[str, Any]:
    (found,) = pod(name)["containers"]
    return dict(found)


def drain_s() -> float:
    """What a worker takes at most to end."""
    return float(of_kind("ConfigMap")["firstlight"]["data"][f"{PREFIX}DRAIN_S"])


def misfits(value: Any, wanted: Any, path: str = "spec") -> Iterator[str]:
    """Where a value is not of the shape that a table above gives."""
    if isinstance(wanted, type):
        if not isinstance(value, wanted):
            yield f"{path} is no {wanted.__name__}"
    elif isinstance(wanted, list):
        for index, one in enumerate(value if isinstance(value, list) else [None]):
            yield from misfits(one, wanted[0], f"{path}[{index}]")
    elif not isinstance(value, dict):
        yield f"{path} is no object"
    else:
        yield from (f"{path}.{name} is unknown" for name in value if name not in wanted)
        for name in value.keys() & wanted.keys():
            yield from misfits(value[name], wanted[name], f"{path}.{name}")


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("*.y*ml")), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_file_is_yaml_and_belongs_somewhere(path: Path) -> None:
    assert all(isinstance(document, dict) for document in yaml.safe_load_all(path.read_text()))
    if path.parent == KUBERNETES and path.name != "kustomization.yaml":
        assert path.name in KUSTOMIZATION["resources"]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_manifest_has_the_shape_of_its_kind(manifest: dict[str, Any]) -> None:
    assert "namespace" not in manifest["metadata"]
    if manifest["apiVersion"] == "keda.sh/v1alpha1":
        assert list(misfits(manifest["spec"], KEDA[manifest["kind"]])) == []
    else:
        kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)


@pytest.mark.parametrize("name", ["sub-path", "gpu"])
def test_component_changes_what_is_there(name: str) -> None:
    component = yaml.safe_load((KUBERNETES / name / "kustomization.yaml").read_text())
    for patch in component["patches"]:
        target = patch["target"]
        matching = [one for found, one in of_kind(target["kind"]).items() if re.fullmatch(target["name"], found)]
        assert matching
        for change in yaml.safe_load(patch["patch"]):
            *above, last = change["path"].strip("/").split("/")
            for place in matching:
                for step in above:
                    place = place[int(step)] if isinstance(place, list) else place[step]
                assert change["op"] == "add" or last in place


def test_compose_file_follows_the_compose_specification() -> None:
    schema = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    jsonschema.validate(COMPOSE, json.loads(schema.read_text()))


def test_every_role_has_its_deployment_and_service() -> None:
    for role in ROLES:
        assert container(f"firstlight-{role}")["args"] == SERVICES[role]["command"] == ["worker", "--roles", role]
        assert f"firstlight-{role}" in SCALED
    for web in (container("firstlight-web")["args"], SERVICES["web-1"]["command"], SERVICES["web-2"]["command"]):
        assert web == ["serve", "--roles", ""]


@ours
def test_environment_is_of_settings_that_exist(name: str) -> None:
    given = {variable["name"] for variable in container(name)["env"]}
    (source,) = container(name)["envFrom"]
    given |= set(of_kind("ConfigMap")[source["configMapRef"]["name"]]["data"])
    assert given <= SETTINGS | OTHERS
    Settings(
        **{key.removeprefix(PREFIX).lower(): value for key, value in of_kind("ConfigMap")["firstlight"]["data"].items()}
    )
    for variable in container(name)["env"]:
        if "valueFrom" in variable:
            reference = variable["valueFrom"]["secretKeyRef"]
            assert reference["key"] in of_kind("Secret")[reference["name"]]["stringData"]


@pytest.mark.parametrize("name", ["web-1", "web-2", *ROLES])
def test_environment_in_compose_is_of_settings_that_exist(name: str) -> None:
    assert set(SERVICES[name]["environment"]) <= SETTINGS | OTHERS
    assert SERVICES[name]["environment"][f"{PREFIX}REDIS_URL"].startswith("redis://valkey:6379")
    if name in ROLES:
        assert (
            float(SERVICES[name]["stop_grace_period"].removesuffix("s"))
            > float(SERVICES[name]["environment"][f"{PREFIX}DRAIN_S"]) + 5
        )


@ours
def test_budgets_and_limits_stand(name: str) -> None:
    resources = container(name)["resources"]
    assert {"cpu", "memory"} <= set(resources["requests"]) and "memory" in resources["limits"]
    labels = DEPLOYMENTS[name]["spec"]["template"]["metadata"]["labels"]
    assert DEPLOYMENTS[name]["spec"]["selector"]["matchLabels"] == labels
    assert of_kind("PodDisruptionBudget")[name]["spec"]["selector"]["matchLabels"] == labels
    assert pod(name)["securityContext"]["runAsNonRoot"]


@ours_that_work
def test_worker_has_longer_to_end_than_it_drains_and_is_probed(name: str) -> None:
    assert pod(name)["terminationGracePeriodSeconds"] > drain_s() + 5
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        command = container(name)[probe]["exec"]["command"]
        assert command[:3] == ["firstlight", "probe", What.WORKER.value]
        assert command[3:] == (["--alive"] if probe == "livenessProbe" else [])
    assert "replicas" not in DEPLOYMENTS[name]["spec"], "KEDA decides"


def test_web_is_asked_for_itself_not_for_the_workers() -> None:
    web = container("firstlight-web")
    (port,) = web["ports"]
    assert port["containerPort"] == Settings.model_fields["port"].default
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert web[probe]["httpGet"] == {"path": "/healthz", "port": port["name"]}
    service = of_kind("Service")["firstlight-web"]
    assert service["spec"]["selector"] == DEPLOYMENTS["firstlight-web"]["spec"]["selector"]["matchLabels"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    for ingress in of_kind("Ingress").values():
        backend = ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
        assert (backend["name"], backend["port"]["name"]) == ("firstlight-web", service["spec"]["ports"][0]["name"])


@scaled
def test_pool_keeps_a_warm_minimum_and_has_an_end(name: str) -> None:
    spec = SCALED[name]["spec"]
    assert spec["scaleTargetRef"]["name"] in WORKERS
    assert 1 <= spec["minReplicaCount"] < spec["maxReplicaCount"]
    for trigger in spec["triggers"]:
        assert set(trigger["metadata"]) <= METADATA[trigger["type"]]
        assert all(isinstance(value, str) for value in trigger["metadata"].values())
        if trigger["type"] == "redis-streams":
            assert trigger["metadata"]["address"] == "firstlight-valkey:6379"
            assert trigger["authenticationRef"]["name"] in of_kind("TriggerAuthentication")


def test_streams_that_are_watched_are_those_that_fill() -> None:
    profile = load_profile(BUNDLE)
    buckets = [str(bucket) for bucket in profile.final.buckets]
    expected = {
        "firstlight-final": {keys.lane(STANDARD, bucket) for bucket in buckets},
        "firstlight-decode": {keys.stream(decode_stage(model_name(profile.id, profile.version)))},
        "firstlight-finish": {keys.stream("finish")},
    }
    for name, streams in expected.items():
        triggers = SCALED[name]["spec"]["triggers"]
        assert {trigger["metadata"]["stream"] for trigger in triggers} == streams
    final = SCALED["firstlight-final"]["spec"]
    added = final["advanced"]["scalingModifiers"]["formula"].split(" + ")
    assert added == [trigger["name"] for trigger in final["triggers"]] == [f"lane_{bucket}" for bucket in buckets]


def test_previews_are_scaled_by_a_metric_that_is_exported() -> None:
    (trigger,) = SCALED["firstlight-preview"]["spec"]["triggers"]
    metrics = Metrics()
    for pool in POOLS:
        metrics.busy(pool, 1.0)
    for name, labels in selectors(trigger["metadata"]["query"]):
        assert f"{name}{{" in metrics.text() and labels <= {"pool"}


def test_queue_writes_down_what_waits_and_throws_nothing_away() -> None:
    (valkey,) = of_kind("StatefulSet")["firstlight-valkey"]["spec"]["template"]["spec"]["containers"]
    for command in (valkey["args"], SERVICES["valkey"]["command"]):
        options = dict(zip(command[1::2], command[2::2], strict=True))
        assert (options["--appendonly"], options["--maxmemory-policy"]) == ("yes", "noeviction")


def test_nginx_and_prometheus_of_compose_find_the_web_processes() -> None:
    conf = (DEPLOY / "nginx.conf").read_text()
    port = Settings.model_fields["port"].default
    assert set(re.findall(r"server (\S+):(\d+)", conf)) == {("web-1", str(port)), ("web-2", str(port))}
    prometheus = yaml.safe_load((DEPLOY / "monitoring" / "prometheus.yml").read_text())
    (job,) = prometheus["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    assert target == f"{SERVICES['web-1']['networks']['default']['aliases'][0]}:{port}"
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).exists() or source == "./tls", source


def test_image_holds_every_package_and_runs_as_nobody_special() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = {word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]}
    kept = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert packages | {"models", "pyproject.toml", "constraints.txt"} <= copied == kept
    assert "USER 10001" in lines and 'ENTRYPOINT ["firstlight"]' in lines
    given = re.findall(r"\b(FIRSTLIGHT_[A-Z_]+)=", "\n".join(lines))
    assert given and set(given) <= SETTINGS
