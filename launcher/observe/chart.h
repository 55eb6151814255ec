// SPDX-License-Identifier: Apache-2.0
// Charts as SVG for a page's own markup, with colours by class so that the page can have a light and a dark set. Pure.
//
// The attribute data-points of each is how many values it shows.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::launcher {

// &, <, > and quotes as XML wants them.
std::string escaped(std::string_view text);

// Lines over steps, in the colours of the classes l0, l1 ... A value that is not finite has a mark of the class bad at
// its step, and no point.
struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;  // steps and values, by step
};
struct Axis {
  std::string_view unit;   // of the values
  bool from_zero = false;  // else from the smallest value
};
std::string line_chart(const std::vector<Curve>& curves, const Axis& axis, std::string_view title);

// A bar each, of parts in `unit` that add up; `parts` of all have the same meaning, in the order of the classes p0, p1
// ...
struct Bar {
  std::string label;
  std::vector<double> parts;
  std::vector<std::string> titles = {};  // what a pointer over each part shows
};
std::string stacked_bars(const std::vector<Bar>& bars, std::string_view unit, std::string_view title);

// A cell for each value, from 0 (nothing) to 1 (the most that there is a colour for), over steps from `first` to
// `last`.
struct HeatRow {
  std::string label;
  std::vector<double> values;
  std::vector<std::string> titles = {};
};
std::string heat_map(const std::vector<HeatRow>& rows, double first, double last, std::string_view title);

}  // namespace lockstep::launcher
