// SPDX-License-Identifier: Apache-2.0
// 02_char_gpt: trains a small GPT on the characters of a text, on as many ranks as started it, and writes with it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include <lockstep/base/intra_op_threads.h>
#include <lockstep/lockstep.h>
#include <lockstep/progress/progress.h>
#include <lockstep/train/weights.h>
#include "examples/02_char_gpt/gpt.h"
#include "examples/02_char_gpt/text.h"
#include "examples/02_char_gpt/train.h"

namespace ls = lockstep;
using namespace char_gpt;

namespace {

struct Flags {
  std::string text = "/usr/share/common-licenses/GPL-3";
  std::string out;
  std::string backend = "auto";
  std::string device = "auto";
  GptOptions model;
  TrainOptions train;
  std::int64_t eval_every = 100;
  std::int64_t generate = 0;
  std::string load;
  std::string prompt = "The ";
  double temperature = 0.7;
};

void add_flags(CLI::App& app, Flags& flags) {
  const auto positive = CLI::Range(std::int64_t{1}, std::int64_t{1} << 24).description("");
  const auto above_zero = CLI::Range(1e-9, 1e9).description("");
  app.add_option("--text", flags.text, "File to learn")->capture_default_str();
  app.add_option("--out", flags.out, "Write the weights to this file (safetensors)");
  app.add_option("--steps", flags.train.steps, "Optimizer steps")->check(positive)->capture_default_str();
  app.add_option("--seed", flags.train.seed, "Of weights, order and dropout")->capture_default_str();
  app.add_option("--batch", flags.train.batch, "Sequences per step, of all ranks together")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--context", flags.model.context, "Characters a sequence")->check(positive)->capture_default_str();
  app.add_option("--layers", flags.model.layers, "Transformer blocks")->check(positive)->capture_default_str();
  app.add_option("--heads", flags.model.heads, "Attention heads")->check(positive)->capture_default_str();
  app.add_option("--embd", flags.model.channels, "Channels; a multiple of --heads")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--dropout", flags.model.dropout, "Probability, below 1")
      ->check(CLI::Range(0.0, 0.999))
      ->capture_default_str();
  app.add_option("--lr", flags.train.learning_rate, "Learning rate after the warm-up")
      ->check(above_zero)
      ->capture_default_str();
  app.add_option("--warmup", flags.train.warmup, "Steps of warm-up")
      ->check(CLI::Range(0, 1 << 24).description(""))
      ->capture_default_str();
  app.add_option("--weight-decay", flags.train.weight_decay, "Of matrices")
      ->check(CLI::Range(0.0, 1e9).description(""))
      ->capture_default_str();
  app.add_option("--clip", flags.train.clip, "Largest norm of all gradients")->check(above_zero)->capture_default_str();
  app.add_option("--workers", flags.train.workers, "Loader threads")->check(CLI::Range(0, 64))->capture_default_str();
  app.add_option("--micro-batches", flags.train.micro_batches,
                 "Of a step: the same bits at any number of ranks up to this; 0: as fast as may be")
      ->check(CLI::Range(0, 1 << 16))
      ->capture_default_str();
  app.add_option("--backend", flags.backend, "Of the ranks' collectives: auto, shm, tcp, mpi, nccl")
      ->capture_default_str();
  app.add_option("--device", flags.device, "To compute on: auto, cpu, cuda")->capture_default_str();
  app.add_option("--eval-every", flags.eval_every, "Measure on held-out text every so many steps")
      ->check(positive)
      ->capture_default_str();
  auto* snapshots = app.add_option("--snapshot-dir", flags.train.snapshot_dir,
                                   "Go on from the newest snapshot in this folder, and save there");
  app.add_flag("--shard", flags.train.shard,
               "Each rank keeps the optimizer's state of its shard alone: the same weights");
  app.add_option("--snapshot-every", flags.train.snapshot_every, "Steps between snapshots")
      ->needs(snapshots)
      ->check(positive)
      ->capture_default_str();
  auto* generate =
      app.add_option("--generate", flags.generate, "Write so many characters instead of training")->check(positive);
  app.add_option("--load,--weights", flags.load, "Weights to write with")->needs(generate);
  app.add_option("--prompt", flags.prompt, "Its beginning")->needs(generate)->capture_default_str();
  app.add_option("--temperature", flags.temperature, "Below 1: more of the likely")
      ->needs(generate)
      ->check(above_zero)
      ->capture_default_str();
  generate->needs("--load");
}

void check(const Flags& flags) {
  if (flags.model.channels % flags.model.heads != 0) {
    throw ls::InvalidArgument(fmt::format("--embd {} is not a multiple of --heads {}; take --embd {}",
                                          flags.model.channels, flags.model.heads,
                                          (flags.model.channels / flags.model.heads + 1) * flags.model.heads));
  }
  if (flags.generate > 0 && flags.prompt.empty()) {
    throw ls::InvalidArgument("--prompt is empty; give at least one character to begin with");
  }
  // Now, not after the last step.
  const auto folder = std::filesystem::path(flags.out).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder)) {
    throw ls::InvalidArgument(
        fmt::format("--out {}: the folder '{}' is not there; make it first", flags.out, folder.string()));
  }
}

void write_passage(const Flags& flags) {
  ls::set_intra_op_threads(1);  // one sequence is too little work to share
  const auto metadata = ls::read_weights_metadata(flags.load);
  Gpt model(from_metadata(metadata));
  const auto characters = metadata.find("vocabulary");
  const auto vocabulary = Vocabulary::from_hex(characters == metadata.end() ? "" : characters->second);
  if (vocabulary.size() != model.options().vocabulary) {
    throw ls::InvalidArgument(
        fmt::format("'{}' has a vocabulary of {} characters for a model of {}; were the weights "
                    "saved by this program?",
                    flags.load, vocabulary.size() - 1, model.options().vocabulary - 1));
  }
  ls::load_weights(flags.load, model);
  fmt::print("{}\n", generate(model, vocabulary, flags.prompt, flags.generate, flags.temperature, flags.train.seed));
}

// The exit code.
int train_and_measure(Flags flags) {
  // What every rank would find wrong alike is found before they meet.
  const std::string text = read_text(flags.text);
  const Split split = split_text(text, flags.model.context);
  const Vocabulary vocabulary(split.training);
  const auto tokens = [&](std::string_view part) {
    return std::make_shared<const std::vector<std::int64_t>>(vocabulary.encode(part));
  };
  const Tokens training = tokens(split.training);
  const Windows training_windows(training, flags.model.context, 1);
  const Windows held_out(tokens(split.held_out), flags.model.context, flags.model.context);
  const double bigram = BigramTable(*training, vocabulary.size()).mean_loss(held_out);

  if (flags.train.micro_batches > 0 && flags.device == "auto") flags.device = "cpu";  // other bits than a GPU's
  const auto group = ls::init_process_group({.backend = flags.backend, .device = flags.device});
  flags.model.vocabulary = vocabulary.size();
  Gpt model(flags.model);
  model.initialize(flags.train.seed);
  model.to(group->device());
  ls::DistributedDataParallel ddp(model, group, ddp_options(flags.train));
  std::optional<ls::Progress> bar;
  const auto result = [&] {
    return fmt::format("validation loss {:.4f} (bigram table {:.4f})", evaluate(model, held_out, *group), bigram);
  };
  const auto before_steps = [&](std::int64_t steps) {
    bar.emplace(*group, flags.train.steps - steps);
    bar->note(
        fmt::format("{}: {} characters to learn, {} held out; {} parameters in {} buckets, {} sequences of {} a step",
                    flags.text, split.training.size(), split.held_out.size(), model.parameter_count(),
                    ddp.reducer().plan().buckets.size(), flags.train.batch, flags.model.context));
  };
  const auto after_step = [&](std::int64_t step, ls::DistributedDataParallel& trained) {
    bar->step(trained);
    if ((step + 1) % flags.eval_every == 0 && step + 1 < flags.train.steps) {
      bar->note(fmt::format("step {}: {}", step + 1, result()));
    }
  };
  train(ddp, training_windows, flags.train, after_step, before_steps);
  bar->finish();
  if (ddp.should_stop()) return ddp.exit_code();  // step() has saved it
  const std::string last = result();
  if (!flags.out.empty()) {
    auto metadata = to_metadata(flags.model);
    metadata["vocabulary"] = vocabulary.hex();
    ls::save_weights(flags.out, model, *group, metadata);
  }
  if (group->rank() == 0) {
    fmt::print("{}\n", last);
    if (!flags.out.empty()) fmt::print("weights saved to {}\n", flags.out);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a small GPT on the characters of a text, on one or more ranks, or writes with it.",
               "02_char_gpt");
  Flags flags;
  add_flags(app, flags);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string("02_char_gpt: ") + error.what() + "; see 02_char_gpt --help\n";
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError&) {  // whose own text has them in reverse
    fmt::print(stderr, "02_char_gpt: not expected: {}; see 02_char_gpt --help\n", fmt::join(app.remaining(), " "));
    return 2;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    check(flags);
    if (flags.generate > 0) {
      write_passage(flags);
    } else {
      return train_and_measure(flags);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "02_char_gpt: {}\n", error.what());
    return 1;
  }
  return 0;
}
