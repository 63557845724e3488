// What LoRA adapters add to the products of a pass: lora.h's kernels, in order.
//
// Where ranks share the model, each adds all that belongs to the residual
// stream by itself, as each has its inputs, and does so before the product:
// then sums are of one order, whatever the number of ranks.
#include <algorithm>

#include "common/log.h"
#include "engine/cuda/forward_pass.h"
#include "engine/cuda/lora.h"

namespace baton::engine::cuda {

void ForwardPass::NarrowLora(const LoraRows& adapted, int32_t layer,
                             LoraInput input, const DeviceBuffer& x,
                             int64_t x_stride, InputOrder order) {
  if (adapted.num_tiles == 0) return;
  LoraNarrowArgs args;
  args.entries = weights_.loras.of(layer, input);
  if (args.entries == nullptr) return;
  args.rows = adapted;
  args.parts = static_cast<int32_t>(TargetsOf(input).size());
  args.rank = weights_.loras.rank;
  args.padded_inputs = static_cast<int32_t>(x_stride);
  args.x = x.as<uint16_t>();
  args.x_stride = x_stride;
  args.x_order = order;
  args.narrow = narrow_.as<uint16_t>();
  RunLoraNarrow(args, stream_.handle());
}

void ForwardPass::AddLora(const LoraRows& adapted, int32_t layer,
                          LoraInput input, float* out, int64_t out_stride) {
  if (adapted.num_tiles == 0) return;
  LoraWideArgs args;
  args.entries = weights_.loras.of(layer, input);
  if (args.entries == nullptr) return;
  args.rows = adapted;
  args.rank = weights_.loras.rank;
  args.narrow = narrow_.as<uint16_t>();
  int32_t column = 0;
  for (const LoraTarget target : TargetsOf(input)) {
    const int32_t outputs = LoraOutputs(config_, place_.shard, target);
    args.outputs[args.parts] = outputs;
    args.columns[args.parts++] = column;
    column += outputs;
  }
  args.end_row = options_.max_rows;
  args.out = out;
  args.out_stride = out_stride;
  RunLoraWide(args, stream_.handle());
}

void ForwardPass::AddAdaptedProduct(const LoraRows& adapted, int32_t layer,
                                    LoraInput input, const DeviceMatrix& w,
                                    const DeviceBuffer& x, int64_t x_stride,
                                    float* residual, int32_t rows,
                                    const float* norm) {
  CHECK(to_be_added_.values == nullptr);
  // With others, and nothing to add to them, parts of it may stay apart.
  if (norm != nullptr && (place_.group == nullptr || adapted.num_tiles > 0)) {
    return StoreProduct(adapted, layer, input, w, x, x_stride, rows, norm);
  }
  NarrowLora(adapted, layer, input, x, x_stride, OrderOf(rows));
  AddLora(adapted, layer, input, residual, sizes_.hidden);
  AddProduct(w, x, x_stride, residual, rows, norm);
}

void ForwardPass::StoreProduct(const LoraRows& adapted, int32_t layer,
                               LoraInput input, const DeviceMatrix& w,
                               const DeviceBuffer& x, int64_t x_stride,
                               int32_t rows, const float* norm) {
  NarrowLora(adapted, layer, input, x, x_stride, OrderOf(rows));
  // As each rank adds all of what adapters do, it needs all of the product.
  const PartOf<float> part =
      Part<float>(product_, sizes_.hidden, sizes_.hidden_part);
  MatmulArgs product;
  product.w = w;
  product.x = x.as<uint16_t>();
  product.x_stride = x_stride;
  product.x_order = OrderOf(rows);
  product.rows = rows;
  product.out = part.data;
  product.out_stride = part.stride;
  RunMatmul(product, MatmulOutput::kStore, kernels(), stream_.handle());
  Complete<float>(product_, sizes_.hidden, sizes_.hidden_part, sizes_.hidden,
                  rows);
  AddLora(adapted, layer, input, product_.as<float>(), sizes_.hidden);
  LeaveAdded(product_, sizes_.hidden, norm);
}

void ForwardPass::GateAdapted(const LoraRows& adapted, int32_t layer,
                              int32_t rows, const PartOf<uint16_t>& gated) {
  const InputOrder order = OrderOf(rows);
  NarrowLora(adapted, layer, LoraInput::kGateUp, normed_, sizes_.padded_hidden,
             order);
  MatmulArgs product;
  product.w = weights_.layers[layer].gate_up;
  // Padding of gate and of up lies between what is not.
  product.w.outputs = product.w.output_tiles * kTileOutputs;
  CHECK_EQ(product.w.outputs, sizes_.stored_gate_up);
  product.x_stride = sizes_.padded_hidden;
  product.x_order = order;
  product.out = stored_.as<float>();
  product.out_stride = sizes_.stored_gate_up;
  LoraWideArgs wide;
  wide.entries = weights_.loras.of(layer, LoraInput::kGateUp);
  wide.rows = adapted;
  wide.rank = weights_.loras.rank;
  wide.narrow = narrow_.as<uint16_t>();
  wide.parts = 2;
  wide.outputs[0] = wide.outputs[1] = sizes_.intermediate_part;
  wide.in_turns = true;
  wide.out = product.out;
  wide.out_stride = product.out_stride;
  SwigluArgs swiglu;
  swiglu.from = product.out;
  swiglu.from_stride = product.out_stride;
  swiglu.elements = sizes_.intermediate_part;
  swiglu.to = gated.data;
  swiglu.to_stride = gated.stride;
  swiglu.to_order = PartOrderOf(rows);
  swiglu.gelu = config_.activation == Activation::kGeluTanh;
  // Some rows at a time, about as many each: few of many would want their
  // inputs in another order (OrderOfInputs). Of staged ones, whole groups.
  const auto times = static_cast<int32_t>(
      (int64_t{rows} + sizes_.stored_rows - 1) / sizes_.stored_rows);
  int32_t first = 0;
  for (int32_t left = times; left > 0; --left) {
    const int32_t share = (rows - first + left - 1) / left;
    const int32_t count =
        std::min(rows - first,
                 left == 1 ? share : static_cast<int32_t>(StagedRows(share)));
    CHECK_LE(count, sizes_.stored_rows);
    product.x = normed_.as<uint16_t>() + int64_t{first} * sizes_.padded_hidden;
    product.rows = count;
    RunMatmul(product, MatmulOutput::kStore, kernels(), stream_.handle());
    wide.first_row = first;
    wide.end_row = first + count;
    if (wide.entries != nullptr) RunLoraWide(wide, stream_.handle());
    swiglu.rows = count;
    swiglu.first_row = first;
    RunSwiglu(swiglu, stream_.handle());
    first += count;
  }
  CHECK_EQ(first, rows);
}

}  // namespace baton::engine::cuda
