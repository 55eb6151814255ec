// SPDX-License-Identifier: Apache-2.0
// Charts as SVG for a page's own markup, with colours by class so that the page can have a light and a dark set. Pure.
//
// The attribute data-points of each is how many values it shows.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launcher {

// &, <, > and quotes as XML wants them.
std::string escaped(std::string_view text);

// More values than kMostPoints become means of as many neighbours each; what is not finite has no point.
inline constexpr std::size_t kMostPoints = 1000;
std::string line_chart(const std::vector<double>& values, std::string_view title);

// A bar each, of parts that add up; `parts` of all have the same meaning, in the order of the classes p0, p1 ...
struct Bar {
  std::string label;
  std::vector<double> parts;
  std::vector<std::string> titles = {};  // what a pointer over each part shows
};
std::string stacked_bars(const std::vector<Bar>& bars, std::string_view title);

// A cell for each value, from 0 (nothing) to 1 (the most that there is a colour for).
struct HeatRow {
  std::string label;
  std::vector<double> values;
  std::vector<std::string> titles = {};
};
std::string heat_map(const std::vector<HeatRow>& rows, std::string_view title);

}  // namespace lockstep::launcher
