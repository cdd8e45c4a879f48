"""The C interface of the agent's shared library (agent/src/capi.h), as ctypes structures and typed calls.

Nothing here knows about torch; everything per tensor goes through ops.py instead.
"""

from __future__ import annotations

import ctypes
import pathlib
from ctypes import POINTER, Structure, c_char_p, c_double, c_int32, c_int64, c_uint32, c_uint64, c_void_p

LIBRARY_PATH = pathlib.Path(__file__).parent / "lib" / "libneuraldbg_agent.so"
NO_SITE = 0xFFFFFFFF
NO_GRADIENT = 0xFFFFFFFE  # in set_calls: this call gets no gradient
_ERROR_BYTES = 512


class SessionOptions(Structure):
    """ndbg_session_options."""

    _fields_ = [
        ("shm_directory", c_char_p),
        ("run_name", c_char_p),
        ("launch", c_char_p),
        ("host", c_char_p),
        ("framework", c_char_p),
        ("rank", c_uint32),
        ("world_size", c_uint32),
        ("incarnation", c_uint32),
        ("start_step", c_uint64),
        ("lanes", c_uint32),
        ("lane_capacity", c_uint32),
        ("records_per_step", c_uint32),
        ("sites", c_uint32),
        ("compiled", c_uint32),
        ("for_group", c_uint32),
        ("group", c_uint32),
    ]


class SiteRecord(Structure):
    """ndbg_site."""

    _fields_ = [
        ("name", c_char_p),
        ("module", c_char_p),
        ("module_kind", c_char_p),
        ("owner", c_char_p),
        ("role", c_uint32),
        ("phase", c_uint32),
        ("dtype", c_uint32),
        ("level", c_uint32),
        ("requires_grad", c_uint32),
        ("topological_index", c_uint32),
        ("twin", c_uint32),
        ("covered_by", c_uint32),
        ("tie_group", c_uint32),
        ("optimizer_group", c_uint32),
        ("unit_mode", c_uint32),
        ("saturation", c_uint32),
        ("dead", c_uint32),
        ("shape", POINTER(c_uint64)),
        ("dimensions", c_uint32),
    ]


class OptimizerRecord(Structure):
    """ndbg_optimizer."""

    _fields_ = [
        ("site", c_uint32),
        ("group", c_uint32),
        ("parameter_count", c_uint32),
        ("observed_count", c_uint32),
        ("skipped_total", c_uint32),
        ("applied", c_uint32),
        ("found_inf", c_uint32),
        ("clipped", c_uint32),
        ("learning_rate", c_double),
        ("loss_scale", c_double),
        ("weight_decay", c_double),
        ("beta1", c_double),
        ("beta2", c_double),
        ("epsilon", c_double),
        ("gradient_sum_squares", c_double),
        ("update_sum_squares", c_double),
    ]


class StepRecord(Structure):
    """ndbg_step."""

    _fields_ = [
        ("site", c_uint32),
        ("applied", c_uint32),
        ("found_inf", c_uint32),
        ("grad_dirty", c_uint32),
        ("unannounced", c_uint32),
        ("all_parameters", c_uint32),
        ("samples", c_uint64),
        ("duration_ns", c_uint64),
        ("microbatches", c_uint32),
        ("cadence", c_uint32),
        ("rotation_group", c_uint32),
        ("rotation_groups", c_uint32),
        ("shed_level", c_uint32),
        ("skipped_total", c_uint32),
        ("recompiles", c_uint32),
    ]


class Status(Structure):
    """ndbg_status."""

    _fields_ = [
        ("attempts", c_uint64),
        ("dropped", c_uint64),
        ("agent_ns", c_uint64),
        ("records_this_step", c_uint64),
        ("nonfinite_this_step", c_uint64),
        ("nonfinite_total", c_uint64),
        ("step", c_uint64),
        ("lane_capacity", c_uint32),
        ("enabled", c_uint32),
        ("lost", c_uint64),
        ("replacements", c_uint32),
    ]


class SegmentError(RuntimeError):
    """The shared-memory segment could not be created; the message is the library's sentence."""


def _typed(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declares every signature: ctypes would otherwise cut 64-bit values to int."""
    site, step, optimizer = POINTER(SiteRecord), POINTER(StepRecord), POINTER(OptimizerRecord)
    signatures: dict[str, tuple[object, list[object]]] = {
        "ndbg_session_create": (c_int32, [POINTER(SessionOptions), c_char_p, c_uint32]),
        "ndbg_session_destroy": (None, [c_int32]),
        "ndbg_session_path": (c_char_p, [c_int32]),
        "ndbg_version": (c_char_p, []),
        "ndbg_session_add_site": (c_uint32, [c_int32, site]),
        "ndbg_session_update_site": (c_uint32, [c_int32, c_uint32, site]),
        "ndbg_session_calls": (c_uint32, [c_int32, c_uint32, c_uint32, POINTER(c_uint32), c_uint32]),
        "ndbg_session_add_edge": (None, [c_int32, c_uint32, c_uint32]),
        "ndbg_session_add_sink": (None, [c_int32, c_uint32]),
        "ndbg_session_add_mark": (None, [c_int32, c_uint64, c_char_p]),
        "ndbg_session_ready": (None, [c_int32, c_uint32, c_uint32, c_uint32]),
        "ndbg_slot": (c_int64, [c_int32, c_uint32]),
        "ndbg_session_arm": (None, [c_int32, c_uint32]),
        "ndbg_session_context": (None, [c_int32, c_uint32, c_uint32, c_uint32]),
        "ndbg_session_modes": (None, [c_int32, POINTER(c_uint32), c_char_p, c_uint32]),
        "ndbg_session_optimizer": (None, [c_int32, optimizer]),
        "ndbg_session_end_step": (c_uint64, [c_int32, step]),
        "ndbg_session_step": (c_uint64, [c_int32]),
        "ndbg_session_status": (None, [c_int32, POINTER(Status)]),
        "ndbg_gradient_norms_create": (c_void_p, []),
        "ndbg_gradient_norms_destroy": (None, [c_void_p]),
        "ndbg_gradient_norms_observe": (c_char_p, [c_void_p, c_double]),
        "ndbg_gradient_norms_classify": (c_char_p, [c_void_p, c_double]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


class Segment:
    """One rank's shared-memory segment: a thin object around the library's session handle.

    Every call is a no-op after close(), and none blocks (capi.h), so callers need no lock and no check.
    """

    def __init__(self, options: SessionOptions) -> None:
        self._library = _typed(ctypes.CDLL(str(LIBRARY_PATH)))
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        self._handle: int = self._library.ndbg_session_create(ctypes.byref(options), error, _ERROR_BYTES)
        if self._handle < 0:
            raise SegmentError(error.value.decode("utf-8", "replace") or "the segment could not be created")
        self.version = self._library.ndbg_version().decode()
        self.closed = False

    @property
    def path(self) -> str:
        """Of the file that is written now; "" after close()."""
        return self._library.ndbg_session_path(self._handle).decode()

    def close(self) -> None:
        """Clean end of the segment; joins the heartbeat thread (at most 50 ms)."""
        if not self.closed:
            self.closed = True
            self._library.ndbg_session_destroy(self._handle)

    def add_site(self, site: SiteRecord) -> int:
        """Announces a site and returns its id, or NO_SITE when the manifest is full."""
        return self._library.ndbg_session_add_site(self._handle, ctypes.byref(site))

    def update_site(self, site_id: int, site: SiteRecord) -> None:
        """Announces a site once more, with changed properties."""
        self._library.ndbg_session_update_site(self._handle, site_id, ctypes.byref(site))

    def set_calls(self, slot: int, forward: int, sites: list[int]) -> None:
        """The n-th call of a site in a forward pass reports as sites[n]; gradients (of `forward`) in reverse."""
        self._library.ndbg_session_calls(self._handle, slot, forward, (c_uint32 * len(sites))(*sites), len(sites))

    def add_edge(self, producer: int, consumer: int) -> None:
        """Dataflow from one site to another."""
        self._library.ndbg_session_add_edge(self._handle, producer, consumer)

    def add_sink(self, site_id: int) -> None:
        """A site that the output of the model derives from."""
        self._library.ndbg_session_add_sink(self._handle, site_id)

    def add_mark(self, step: int, text: str) -> None:
        """An announced change at a step."""
        self._library.ndbg_session_add_mark(self._handle, step, text.encode("utf-8", "replace"))

    def ready(self, graph_exact: bool, planned_sites: int, parameters: int) -> None:
        """The graph and all sites of the first step are in the manifest."""
        self._library.ndbg_session_ready(self._handle, graph_exact, planned_sites, parameters)

    def slot(self, site_id: int) -> int:
        """The number that the operators take for a site, in a tensor."""
        return self._library.ndbg_slot(self._handle, site_id)

    def arm(self, armed: int) -> None:
        """Whether tensor sites are observed; read by the operators at run time."""
        self._library.ndbg_session_arm(self._handle, armed)

    def context(self, training: bool, grad_mode: bool, microbatch: int) -> None:
        """What the forward pass that begins is."""
        self._library.ndbg_session_context(self._handle, training, grad_mode, microbatch)

    def modes(self, sites: ctypes.Array[c_uint32], evaluation: bytes) -> None:
        """Whether the module behind each of these sites is in evaluation mode from now on."""
        self._library.ndbg_session_modes(self._handle, sites, evaluation, len(evaluation))

    def optimizer(self, record: OptimizerRecord) -> None:
        """Pushes an OPTIMIZER record."""
        self._library.ndbg_session_optimizer(self._handle, ctypes.byref(record))

    def end_step(self, record: StepRecord) -> int:
        """Pushes the STEP record that closes the running step; returns its number."""
        return self._library.ndbg_session_end_step(self._handle, ctypes.byref(record))

    def step(self) -> int:
        """Number of the running step."""
        return self._library.ndbg_session_step(self._handle)

    def status(self) -> Status:
        """Counters as of now."""
        status = Status()
        self._library.ndbg_session_status(self._handle, ctypes.byref(status))
        return status


class GradientNorms:
    """A series of gradient norms that is judged as the daemon judges gradients (gradient_health.h). For one thread."""

    def __init__(self) -> None:
        self._library = _typed(ctypes.CDLL(str(LIBRARY_PATH)))
        self._norms: int | None = self._library.ndbg_gradient_norms_create()

    def __del__(self) -> None:
        if getattr(self, "_norms", None):
            self._library.ndbg_gradient_norms_destroy(self._norms)

    def observe(self, norm: float) -> str:
        """Health of the next step's norm, which enters into what is normal."""
        return self._library.ndbg_gradient_norms_observe(self._norms, norm).decode()

    def classify(self, norm: float) -> str:
        """Health of a norm against what is normal so far."""
        return self._library.ndbg_gradient_norms_classify(self._norms, norm).decode()
