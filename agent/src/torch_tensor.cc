#include "agent/src/torch_tensor.h"

#include <dlfcn.h>

#include "agent/src/statistics_kernel.h"

namespace neuraldbg {
namespace {

// Torch's numbers of element types, asked for once: they are stable, but only as function calls.
struct TorchTypes {
  std::int32_t cpu = aoti_torch_device_type_cpu();
  std::int32_t strided = aoti_torch_layout_strided();
  struct {
    std::int32_t torch;
    DType ours;
  } types[10] = {{aoti_torch_dtype_float32(), DType::kFloat32}, {aoti_torch_dtype_bfloat16(), DType::kBFloat16},
                 {aoti_torch_dtype_float16(), DType::kFloat16}, {aoti_torch_dtype_float64(), DType::kFloat64},
                 {aoti_torch_dtype_int64(), DType::kInt64},     {aoti_torch_dtype_int32(), DType::kInt32},
                 {aoti_torch_dtype_int16(), DType::kInt16},     {aoti_torch_dtype_int8(), DType::kInt8},
                 {aoti_torch_dtype_uint8(), DType::kUInt8},     {aoti_torch_dtype_bool(), DType::kBool}};

  DType Find(std::int32_t torch) const noexcept {
    for (const auto& type : types) {
      if (type.torch == torch) return type.ours;
    }
    return DType::kUnknown;
  }
};

const TorchTypes& Types() noexcept {
  static const TorchTypes kTypes;
  return kTypes;
}

bool IsDenseOnHost(AtenTensorHandle handle) noexcept {
  std::int32_t device = 0, layout = 0;
  return aoti_torch_get_device_type(handle, &device) == AOTI_TORCH_SUCCESS && device == Types().cpu &&
         aoti_torch_get_layout(handle, &layout) == AOTI_TORCH_SUCCESS && layout == Types().strided;
}

}  // namespace

bool ViewOf(const torch::stable::Tensor& tensor, TensorView& view) noexcept {
  AtenTensorHandle handle = tensor.get();
  if (!IsDenseOnHost(handle)) return false;
  std::int32_t dtype = 0;
  std::int64_t dimensions = 0, numel = 0, *sizes = nullptr, *strides = nullptr;
  if (aoti_torch_get_dtype(handle, &dtype) != AOTI_TORCH_SUCCESS) return false;
  view.dtype = Types().Find(dtype);
  if (ElementBytes(view.dtype) == 0) return false;
  if (aoti_torch_get_dim(handle, &dimensions) != AOTI_TORCH_SUCCESS || dimensions > kMaxTensorDimensions) return false;
  if (aoti_torch_get_numel(handle, &numel) != AOTI_TORCH_SUCCESS) return false;
  if (aoti_torch_get_sizes(handle, &sizes) != AOTI_TORCH_SUCCESS) return false;
  if (aoti_torch_get_strides(handle, &strides) != AOTI_TORCH_SUCCESS) return false;
  if (torch_get_const_data_ptr(handle, &view.data) != AOTI_TORCH_SUCCESS) return false;
  if (view.data == nullptr && numel != 0) return false;  // storage was freed or never made (FSDP, meta)
  view.dimensions = static_cast<int>(dimensions);
  view.numel = static_cast<std::uint64_t>(numel);
  view.sizes = sizes;
  view.strides = strides;
  return true;
}

std::int64_t ReadSlot(const torch::stable::Tensor& slot) noexcept {
  TensorView view;
  if (!ViewOf(slot, view) || view.dtype != DType::kInt64 || view.numel == 0) return -1;
  return *static_cast<const std::int64_t*>(view.data);
}

bool InBackward() noexcept {
  // The stable C interface has no question for this. Looked up by name, so that the library loads without it.
  using CurrentGraphTaskId = int (*)();
  static const auto kCurrent =
      reinterpret_cast<CurrentGraphTaskId>(::dlsym(RTLD_DEFAULT, "_ZN5torch8autograd25get_current_graph_task_idEv"));
  return kCurrent != nullptr && kCurrent() != -1;
}

}  // namespace neuraldbg
