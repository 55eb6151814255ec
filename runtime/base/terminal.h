// SPDX-License-Identifier: Apache-2.0
// What can be drawn on a terminal, and the part of a text that fits into one of its lines.
#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep {

// Whether `fd` is a terminal that understands escape sequences: one whose TERM is set, and not "dumb".
bool can_draw_on(int fd) noexcept;

// The beginning of `text` of at most so many letters of UTF-8, each a column.
std::string_view first_columns(std::string_view text, std::size_t columns) noexcept;

// The beginning of `text` that stays in one line of the terminal `fd`: a part in the next line would stay there when
// the line is drawn again. All of it where that is not a terminal. Whole letters of UTF-8, each a column; the last
// column stays empty, for a cursor behind it may have moved on already. Asks the terminal each time, since it may be
// resized.
std::string_view in_one_line(std::string_view text, int fd) noexcept;

}  // namespace lockstep
