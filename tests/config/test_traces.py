"""The settings of traces, and the standard variables of OpenTelemetry."""

from tenure.config import TracesConfig, load
from tests.config.conftest import ErrorMessage

ENDPOINT = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}


def traces(**environment: str) -> TracesConfig:
    return load({}, environment).traces


def test_standard_variables_set_traces() -> None:
    assert traces().endpoint is None
    assert traces(**ENDPOINT).endpoint == "http://collector:4318/v1/traces"
    assert traces(OTEL_EXPORTER_OTLP_ENDPOINT="http://c:1/").endpoint == "http://c:1/v1/traces"
    assert traces(OTEL_EXPORTER_OTLP_ENDPOINT="http://c:1", **ENDPOINT).endpoint == "http://collector:4318/v1/traces"
    assert traces(OTEL_SERVICE_NAME="seats", **ENDPOINT).service_name == "seats"
    for sampler, argument, ratio in (
        ("always_on", "0.5", 1.0),
        ("parentbased_always_off", "", 0.0),
        ("traceidratio", "", 1.0),
        ("parentbased_traceidratio", "0.25", 0.25),
    ):
        given = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument, **ENDPOINT}
        assert traces(**given).sample_ratio == ratio, sampler


def test_own_settings_override_standard_variables() -> None:
    own = traces(TENURE_TRACES__ENDPOINT="http://own/x", TENURE_TRACES__SAMPLE_RATIO="0.1", OTEL_SERVICE_NAME="a")
    assert (own.endpoint, own.sample_ratio, own.service_name) == ("http://own/x", 0.1, "a")


def test_standard_variables_can_switch_traces_off() -> None:
    for off in ({"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}):
        assert traces(**ENDPOINT, **off) == TracesConfig()


def test_standard_variables_without_endpoint_are_no_error() -> None:
    """Platforms set some of these variables for every process."""
    assert traces(OTEL_SERVICE_NAME="seats", OTEL_EXPORTER_OTLP_PROTOCOL="grpc").endpoint is None


def test_unusable_values_of_standard_variables_are_rejected(error_message: ErrorMessage) -> None:
    assert error_message(OTEL_TRACES_SAMPLER="jaeger_remote", **ENDPOINT).startswith(
        "traces.sample_ratio (from OTEL_TRACES_SAMPLER): must be always_on, parentbased_always_on"
    )
    assert error_message(OTEL_TRACES_SAMPLER="traceidratio", OTEL_TRACES_SAMPLER_ARG="7", **ENDPOINT) == (
        "traces.sample_ratio (from OTEL_TRACES_SAMPLER_ARG): must be a number from 0 to 1"
    )
    assert error_message(OTEL_EXPORTER_OTLP_PROTOCOL="grpc", **ENDPOINT) == (
        "traces.endpoint (from OTEL_EXPORTER_OTLP_TRACES_ENDPOINT): needs the protocol http/protobuf; "
        "OTEL_EXPORTER_OTLP_PROTOCOL demands another one"
    )


def test_own_setting_without_endpoint_is_rejected(error_message: ErrorMessage) -> None:
    assert error_message(TENURE_TRACES__PER_SECOND="5") == (
        "traces.per_second (from TENURE_TRACES__PER_SECOND): requires traces.endpoint"
    )
