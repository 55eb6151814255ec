// SPDX-License-Identifier: Apache-2.0
// Trains GPT-2 with LibTorch: alone, or on every GPU and host that a launcher starts it on.
#include <lockstep/libtorch.h>
#include <lockstep/optim/schedule.h>
#include <torch/torch.h>

#include <chrono>
#include <optional>

#include "examples/05_libtorch_gpt2/flags.h"
#include "examples/05_libtorch_gpt2/gpt2.h"
#include "examples/05_libtorch_gpt2/tokens.h"

namespace lt = lockstep::libtorch;
using torch::Tensor;

// Begins with `token`, and draws one after another.
template <typename LogitsOf>
std::string generate(const LogitsOf& logits_of, int64_t token, const Flags& flags, bool is_text) {
  const auto generator = at::detail::createCPUGenerator(flags.seed);
  Tensor tokens = torch::full({1, 1}, token, torch::kLong);
  std::string text;
  while (tokens.size(1) <= flags.sample) {
    const Tensor last = logits_of(tokens).select(1, -1).cpu();
    const auto [likely, chosen] = last.topk(std::min(flags.top_k, last.size(1)));
    const Tensor draw = torch::softmax(likely / flags.temperature, 1).multinomial(1, false, generator);
    tokens = torch::cat({tokens, chosen.gather(1, draw)}, 1);
    token = tokens[0][-1].item<int64_t>();
    text += is_text ? fmt::format("{:c}", token < ' ' && token != '\n' ? '?' : char(token)) : fmt::format("{} ", token);
  }
  return text;
}

int train(const Flags& flags) {
  // Errors that every rank would find are reported before the ranks meet.
  Gpt2Config config = gpt2_config(flags.size);
  const int64_t length = flags.length > 0 ? flags.length : config.context;
  const int64_t batch = flags.batch_tokens / length;  // rows of a step
  require(length <= config.context, "--length {}: --size {} takes at most {}", length, flags.size, config.context);
  require(batch * length == flags.batch_tokens, "--batch-tokens must be a multiple of --length, {}", length);
  TokenRows data(flags.data, length);
  TokenRows held_out = flags.validation.empty() ? data : TokenRows(flags.validation, length);
  if (flags.validation.empty()) held_out.begin = data.end = data.end * 9 / 10;
  require((flags.steps == 0 || data.size() >= batch) && held_out.size() > 0,
          "{} rows of {} tokens to train on and {} to validate with are too few for steps of {}; give more --data",
          *data.size(), length, *held_out.size(), batch);
  config.vocabulary = data.is_text() ? kByteVocabulary : kGpt2Vocabulary;
  std::string prefix;  // of the names in the file: what GPT2LMHeadModel writes has one
  if (!flags.weights.empty()) {
    const lockstep::checkpoint::SafetensorsFile file(flags.weights);
    if (file.tensors().contains("transformer.wte.weight")) prefix = "transformer.";
    config.vocabulary = file.find(prefix + "wte.weight").shape.at(0);
  }
  const bool is_text = config.vocabulary == kByteVocabulary;
  require(data.is_text() == is_text && held_out.is_text() == is_text, "a model of {} tokens needs {} as data",
          config.vocabulary, is_text ? "texts" : "token files");
  data.vocabulary = held_out.vocabulary = config.vocabulary;

  const auto group = lockstep::init_process_group({.device = torch::cuda::is_available() ? "auto" : "cpu"});
  const torch::Device device = lt::device_of(*group);
  const c10::DeviceGuard guard(device);
  torch::manual_seed(flags.seed);
  Gpt2 model(config);
  const auto name_in_file = [&](const std::string& name) { return prefix + name; };
  const lockstep::checkpoint::LoadOptions published{.name_in_file = name_in_file, .allow_unexpected = true};  // masks
  if (!flags.weights.empty()) lt::load_weights(flags.weights, model, *group, published);
  model->to(device);
  lt::DistributedDataParallel ddp(model, group);
  const std::vector<Tensor> parameters = ddp.parameters();
  const auto options = torch::optim::AdamWOptions().betas({0.9, 0.95}).weight_decay(0.1);  // of matrices
  lt::FusedAdamW optimizer(lt::decay_groups(parameters, options), options);
  const lockstep::optim::Schedule schedule{flags.lr, flags.lr / 10, flags.warmup, flags.steps};

  // A step has as many rows however many ranks share them, and computes the same.
  lt::DataLoader loader(data, *group, {.global_batch = batch, .seed = flags.seed, .drop_last = true});
  lt::DataLoader validation(held_out, *group, {.global_batch = flags.rows * group->size(), .shuffle = false});
  std::optional<lt::Snapshots> snapshots;
  if (!flags.snapshot_dir.empty()) {
    snapshots.emplace(flags.snapshot_dir, ddp, lockstep::SnapshotOptions{.every = flags.snapshot_every});
    snapshots->add("optimizer", optimizer);
    snapshots->add("data", loader);
    snapshots->restore();
  }

  const bool is_gpu = device.is_cuda(), is_bf16 = flags.dtype == "bf16" || (flags.dtype == "auto" && is_gpu);
  // From pinned memory the copy to the device takes its turn there, and the host does not wait for it.
  const auto there = [&](const Tensor& x) { return is_gpu ? x.pin_memory().to(device, torch::kLong, true) : x; };
  const auto logits_of = [&](auto& net, const Tensor& tokens) {
    const lt::Autocast scope(device.type(), at::kBFloat16, {.enabled = is_bf16});
    return net(there(tokens)).to(torch::kFloat);
  };
  const auto loss_of = [&](auto& net, const Tensor& tokens, const Tensor& targets) {
    return at::cross_entropy_loss(logits_of(net, tokens).flatten(0, 1), there(targets).flatten());
  };
  // The loss over all rows that are held out, each of which one rank has; and rank 0's sample.
  const auto validate = [&] {
    const torch::NoGradGuard no_grad;
    lockstep::Metrics metrics(*group);
    for (auto& rows : validation) {
      const auto loss = loss_of(model, rows.data, rows.target).template item<double>();  // of no rows NaN, not counted
      metrics.add("loss", loss * static_cast<double>(rows.data.size(0)), rows.data.size(0));
    }
    const std::string text = fmt::format("step {}: validation loss {:.6f}", ddp.steps(), metrics.result("loss"));
    if (group->rank() != 0 || flags.sample == 0) return text;
    const auto logits = [&](const Tensor& tokens) { return logits_of(model, tokens.slice(1, -config.context)); };
    return text + "\n" + generate(logits, is_text ? '\n' : 50256, flags, is_text);  // 50256 ends a text of GPT-2's
  };

  int64_t count = 0;
  for (const Tensor& parameter : parameters) count += parameter.numel();
  const auto flops = static_cast<double>(6 * count + 12 * config.layers * config.width * length);  // per token
  lockstep::Progress bar(*group, flags.steps - ddp.steps());
  bar.note(fmt::format("{}: {} parameters, {} on {}; {} rows of {} tokens to train on, {} held out", flags.size, count,
                       is_bf16 ? "bf16" : "float32", device.str(), *data.size(), length, *held_out.size()));
  const Tensor no_inf = torch::zeros({1}, device);
  auto since = std::chrono::steady_clock::now();
  double tokens = 0;  // since then
  ddp.watch(loader);  // its passes end when the ranks have agreed to stop
  for (int64_t epoch = loader.epoch(); ddp.steps() < flags.steps && !ddp.should_stop(); ++epoch) {
    loader.set_epoch(epoch);  // keeps the place in an epoch that a snapshot has begun
    for (auto& own : loader) {
      const double lr = schedule(ddp.steps());
      for (auto& members : optimizer.param_groups()) members.options().set_lr(lr);
      optimizer.zero_grad();
      // This rank's rows, some at a time: gradients add up, and are exchanged with the last.
      for (int64_t row = 0, end; row == 0 || row < own.data.size(0); row = end) {
        end = row + flags.rows;
        const auto local = ddp.no_sync(end < own.data.size(0));
        ddp.backward(loss_of(ddp, own.data.slice(0, row, end), own.target.slice(0, row, end)));
      }
      // Clips the norm to 1. torch::nn::utils::clip_grad_norm_ would wait for the device.
      std::vector<Tensor> gradients;
      for (const Tensor& parameter : parameters) gradients.push_back(parameter.grad());
      const Tensor norm = torch::stack(at::_foreach_norm(gradients)).norm();
      optimizer.step_scaled(norm.clamp_min(1), no_inf);  // divides the gradients
      bar.step(ddp);
      tokens += flags.batch_tokens;
      if (ddp.steps() % flags.log_every == 0) {
        const double norm_now = norm.item<double>();  // waits for the device
        const double speed = tokens / std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
        const double used = 100 * speed * flops / (flags.peak_tflops * 1e12 * group->size());
        bar.note(fmt::format("step {}: loss {:.6f}  lr {:.2e}  norm {:.4f}  {:.0f} tokens/s{}", ddp.steps(),
                             ddp.last_loss().value_or(NAN), lr, norm_now, speed,
                             flags.peak_tflops > 0 ? fmt::format("  MFU {:.1f} %", used) : ""));
        since = std::chrono::steady_clock::now(), tokens = 0;
      }
      if (snapshots) snapshots->step();
      if (ddp.steps() == flags.steps) break;
      if (ddp.steps() % flags.eval_every != 0) continue;
      bar.note(validate());
      since = std::chrono::steady_clock::now(), tokens = 0;
    }
  }
  bar.finish();
  if (ddp.should_stop()) return ddp.exit_code();
  if (snapshots) snapshots->save("the last step");
  const std::string text = validate();
  if (group->rank() == 0) fmt::print("{}\n", text);
  if (!flags.out.empty()) lt::save_weights(flags.out, model, *group);
  return 0;
}

int main(int argc, char** argv) try { return train(Flags(argc, argv)); } catch (const std::exception& error) {
  fmt::print(stderr, "05_libtorch_gpt2: {}\n", error.what());
  return 2;
}
