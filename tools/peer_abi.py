"""The C interface of a prebuilt llama.cpp, as far as tools/peer.py needs it.

Structs, functions and names are those of `include/llama.h` at v0.4.0. `differences` compares them
with the library's own defaults, so that another release is refused instead of misread. A struct
that is passed by value ends in spare bytes: a longer one cannot overrun it.
"""

from __future__ import annotations

import ctypes as C
from typing import Any

TYPES: dict[str, Any] = {
    "ptr": C.c_void_p,
    "i32": C.c_int32,
    "u32": C.c_uint32,
    "i64": C.c_int64,
    "f32": C.c_float,
    "f64": C.c_double,
    "bool": C.c_bool,
    "text": C.c_char_p,
    "size": C.c_size_t,
    "floats": C.POINTER(C.c_float),
    "char128": C.c_char * 128,
    "spare": C.c_ubyte * 256,
    "void": None,
}


def _fields(text: str) -> list[tuple[str, Any]]:
    """Read struct fields: one type a line, followed by the names that have it, in order."""
    rows = [line.split() for line in text.strip().splitlines()]
    return [(name, TYPES[row[0]]) for row in rows for name in row[1:]]


class ModelParams(C.Structure):
    """llama_model_params."""

    _fields_ = _fields("""
        ptr  devices tensor_buft_overrides
        i32  n_gpu_layers split_mode load_mode lazy_mode main_gpu
        ptr  tensor_split progress_callback progress_callback_user_data kv_overrides
        bool vocab_only check_tensors use_extra_bufts no_host no_alloc load_mtp
        spare spare
    """)


class ContextParams(C.Structure):
    """llama_context_params."""

    _fields_ = _fields("""
        u32  n_ctx n_batch n_ubatch n_seq_max n_rs_seq n_outputs_max n_outputs_max_per_seq
        i32  n_threads n_threads_batch ctx_type rope_scaling_type pooling_type attention_type
        i32  flash_attn_type
        f32  rope_freq_base rope_freq_scale yarn_ext_factor yarn_attn_factor yarn_beta_fast
        f32  yarn_beta_slow
        u32  yarn_orig_ctx
        f32  defrag_thold
        ptr  cb_eval cb_eval_user_data
        i32  type_k type_v
        ptr  abort_callback abort_callback_data
        bool embeddings offload_kqv no_perf op_offload swa_full kv_unified
        ptr  samplers
        size n_samplers
        ptr  ctx_other
        spare spare
    """)


class ImatrixEntry(C.Structure):
    """llama_model_imatrix_data: one tensor's importances; a list ends with a null name."""

    _fields_ = _fields("""
        text name
        floats data
        size size
    """)


class OverrideValue(C.Union):
    """The value of a KvOverride."""

    _fields_ = _fields("""
        i64  as_int
        f64  as_float
        bool as_bool
        char128 as_str
    """)


TYPES["OverrideValue"] = OverrideValue


class KvOverride(C.Structure):
    """llama_model_kv_override: one metadata value; a list ends with an empty key."""

    _fields_ = _fields("""
        i32 tag
        char128 key
        OverrideValue value
    """)


class TensorOverride(C.Structure):
    """llama_model_tensor_override: the type of tensors that match a regex; a null pattern ends."""

    _fields_ = _fields("""
        text pattern
        i32  type
    """)


class QuantizeParams(C.Structure):
    """llama_model_quantize_params."""

    _fields_ = _fields("""
        i32  nthread ftype output_tensor_type token_embedding_type
        bool allow_requantize quantize_output_tensor only_copy pure keep_split dry_run
        ptr  imatrix kv_overrides tt_overrides prune_layers
        size max_buf_size
        spare spare
    """)


class Batch(C.Structure):
    """llama_batch: tokens with positions, sequences and which of them give an output."""

    _fields_ = _fields("""
        i32 n_tokens
        ptr token embd pos n_seq_id seq_id logits
    """)


TYPES |= {s.__name__: s for s in (ModelParams, ContextParams, QuantizeParams, Batch)}

# result, name, arguments
FUNCTIONS = """
    text llama_version
    text llama_print_system_info
    void llama_backend_init
    void llama_log_set ptr ptr
    ModelParams llama_model_default_params
    ContextParams llama_context_default_params
    QuantizeParams llama_model_quantize_default_params
    ptr  llama_model_load_from_file text ModelParams
    void llama_model_free ptr
    ptr  llama_model_get_vocab ptr
    i32  llama_model_n_embd_out ptr
    i32  llama_model_n_ctx_train ptr
    i32  llama_model_n_layer ptr
    u32  llama_model_quantize text text ptr
    ptr  llama_init_from_model ptr ContextParams
    void llama_free ptr
    u32  llama_n_ctx ptr
    u32  llama_n_batch ptr
    i32  llama_pooling_type ptr
    ptr  llama_get_memory ptr
    void llama_memory_clear ptr bool
    bool llama_memory_seq_rm ptr i32 i32 i32
    void llama_memory_seq_cp ptr i32 i32 i32 i32
    void llama_memory_seq_add ptr i32 i32 i32 i32
    size llama_state_seq_get_size ptr i32
    size llama_state_seq_get_data ptr ptr size i32
    size llama_state_seq_set_data ptr ptr size i32
    i32  llama_decode ptr Batch
    void llama_synchronize ptr
    floats llama_get_logits ptr
    floats llama_get_embeddings ptr
    floats llama_get_embeddings_seq ptr i32
    i32  llama_vocab_n_tokens ptr
    text llama_vocab_get_text ptr i32
    f32  llama_vocab_get_score ptr i32
    i32  llama_vocab_get_attr ptr i32
    bool llama_vocab_get_add_bos ptr
    bool llama_vocab_get_add_eos ptr
    i32  llama_vocab_bos ptr
    i32  llama_vocab_eos ptr
    bool llama_vocab_is_eog ptr i32
    i32  llama_tokenize ptr text i32 ptr i32 bool bool
    i32  llama_detokenize ptr ptr i32 ptr i32 bool bool
    i32  llama_token_to_piece ptr i32 ptr i32 i32 bool
"""

# File types by the names that llama-quantize takes.
_FTYPES = """
    F32=0 F16=1 Q4_0=2 Q4_1=3 Q8_0=7 Q5_0=8 Q5_1=9 Q2_K=10 Q3_K_S=11 Q3_K_M=12 Q3_K_L=13 Q4_K_S=14
    Q4_K_M=15 Q5_K_S=16 Q5_K_M=17 Q6_K=18 IQ2_XXS=19 IQ2_XS=20 Q2_K_S=21 IQ3_XS=22 IQ3_XXS=23
    IQ1_S=24 IQ4_NL=25 IQ3_S=26 IQ3_M=27 IQ2_S=28 IQ2_M=29 IQ4_XS=30 IQ1_M=31 BF16=32 TQ1_0=36
    TQ2_0=37 MXFP4_MOE=38 NVFP4=39 Q1_0=40 Q2_0=41 Q3_K=12 Q4_K=15 Q5_K=17 COPY=0
"""
FTYPES = {name: int(number) for name, number in (item.split("=") for item in _FTYPES.split())}
N_TYPES = 43  # ggml_type values; as a type it stands for "not given"
POOLING = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
LOAD_MODE = {False: 0, True: 1}  # by "map the file"
LOG_ERROR = 4
LOG = C.CFUNCTYPE(None, C.c_int, C.c_char_p, C.c_void_p)


def declare(lib: C.CDLL) -> None:
    """Give every function of FUNCTIONS its result and argument types."""
    for line in FUNCTIONS.strip().splitlines():
        result, name, *arguments = line.split()
        function = getattr(lib, name)
        function.restype, function.argtypes = TYPES[result], [TYPES[a] for a in arguments]


def type_ids(base: C.CDLL) -> dict[str, int]:
    """Tensor types by lower-case name (`q4_k`), as libggml-base itself names them."""
    base.ggml_type_name.restype, base.ggml_type_name.argtypes = C.c_char_p, [C.c_int32]
    names = {i: base.ggml_type_name(i) for i in range(N_TYPES)}
    known = {i: name.decode().lower() for i, name in names.items() if name}
    return {name: i for i, name in known.items() if "removed" not in name and name != "deprecated"}


DEFAULTS: dict[str, dict[str, Any]] = {
    "llama_model_default_params": {"n_gpu_layers": -1, "split_mode": 1, "load_mode": -1}
    | {"vocab_only": False, "use_extra_bufts": True, "load_mtp": False},
    "llama_context_default_params": {"n_ctx": 512, "n_batch": 2048, "n_ubatch": 512}
    | {"n_seq_max": 1, "pooling_type": -1, "flash_attn_type": -1, "yarn_ext_factor": -1.0}
    | {"defrag_thold": -1.0, "type_k": 1, "type_v": 1, "embeddings": False, "offload_kqv": True}
    | {"op_offload": True, "swa_full": True, "kv_unified": False, "n_samplers": 0},
    "llama_model_quantize_default_params": {"nthread": 0, "ftype": 7, "output_tensor_type": N_TYPES}
    | {"token_embedding_type": N_TYPES, "quantize_output_tensor": True, "pure": False}
    | {"keep_split": False, "imatrix": None, "max_buf_size": 8 << 30},
}


def differences(lib: C.CDLL) -> str:
    """What the library's defaults say against the layouts above; empty when all is as expected."""
    return ", ".join(
        f"{name}: {field} is {getattr(params, field)!r} and not {value!r}"
        for name, fields in DEFAULTS.items()
        for params in (getattr(lib, name)(),)
        for field, value in fields.items()
        if getattr(params, field) != value
    )
