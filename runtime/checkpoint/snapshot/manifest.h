// SPDX-License-Identifier: Apache-2.0
// manifest.json, the list of a snapshot's contents. It is written last, so that a folder with a manifest is a whole
// snapshot. docs/SNAPSHOT_FORMAT.md describes the format.
//
// Pure functions over text: no files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/snapshot_value.h"
#include "lockstep/device/dtype.h"

namespace lockstep::checkpoint {

// The ranks that have an item's value.
enum class ItemKind : std::uint8_t {
  replicated,  // every rank the same: one copy is kept
  per_rank,    // each rank its own
  sharded,     // its values every rank the same; of its tensors each rank wrote a part, to a file of its own
};

struct ManifestFile {
  std::string name;  // in the snapshot's folder
  std::uint64_t bytes = 0;
  std::uint64_t xxh3 = 0;  // the whole file's
  int owner = 0;           // the rank that wrote it
  std::string host = {};   // that rank's; empty: an earlier lockstep has not noted it
};

// Elements [begin, end) of a tensor. In the file they are a tensor of one dimension, by the whole one's name.
struct TensorSlice {
  std::string file;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// A tensor that lies in slices.
struct SlicedTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape = {};  // the whole one's, as in a file that has it whole
  bool is_transposed = false;            // slices are of the transposed matrix, [shape[1], shape[0]] row-major
  std::vector<TensorSlice> slices = {};  // one behind another, from the first element to the last

  // Elements; nullopt if a dimension is negative, or bytes pass 64 bits.
  std::optional<std::int64_t> count() const;
};

struct ManifestItem {
  std::string name;
  std::string type;  // "Module", "AdamW"
  ItemKind kind = ItemKind::replicated;
  AtAnotherSize at_another_size = AtAnotherSize::refuse;
  std::optional<std::string> tensors = std::nullopt;  // the file that has them; none of a sharded item
  std::vector<SlicedTensor> sliced = {};              // the tensors of a sharded item
  std::vector<SnapshotValues> values = {};            // one of each rank, or one for all
};

struct Manifest {
  std::int64_t step = 0;        // synchronised steps done
  std::int64_t generation = 0;  // the generation of the run that wrote it
  int world_size = 0;
  std::string time;                                    // UTC, "2026-11-23T03:00:00Z"
  std::string writer;                                  // "rank 0 (host node7, pid 4711)"
  std::string reason;                                  // "every 500 steps"
  std::optional<double> value = std::nullopt;          // by which it may be one of the best: a validation loss
  std::optional<std::int64_t> audited = std::nullopt;  // the last step that audits had found sound
  std::vector<ManifestFile> files = {};
  std::vector<ManifestItem> items = {};
};

// JSON with a checksum of itself. The same manifest makes the same text.
std::string to_text(const Manifest& manifest);
// Values alone, for a rank that tells another.
std::string to_text(const SnapshotValues& values);
SnapshotValues values_from_text(std::string_view text);
// The part of a manifest that one rank has written, for the rank that joins them: as manifest_from_text(), without
// check_references().
Manifest part_from_text(std::string_view text);
// Adds the files of `part`, and its slices to the tensors of that name. CorruptData if it has others.
void join_part(Manifest& manifest, Manifest part);
// CorruptData unless each name means one thing, the manifest has the files that it names, and slices make up their
// tensors without gaps or overlaps.
void check_references(const Manifest& manifest);
// Throws CorruptData with the reason: no JSON, another checksum than it says, a member that is missing or of another
// kind. LaterFormat (sealed_json.h) where it is of a later version, or has an item of a kind that this one doesn't
// know.
Manifest manifest_from_text(std::string_view text);

}  // namespace lockstep::checkpoint
