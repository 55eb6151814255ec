// SPDX-License-Identifier: Apache-2.0
// Charts as SVG inside an HTML page. Colours are classes, so that the page can have a light and a dark set. Pure.
//
// The attribute data-points of each chart is the number of values in it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::launcher {

// Escapes &, <, > and quotes for XML.
std::string escaped(std::string_view text);

// A line over steps. Several have the colours of the classes l0, l1 ... A value that is not finite is drawn as a mark
// of the class bad at its step, without a point.
struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;  // steps and values, by step
};
struct Axis {
  std::string_view unit;   // unit of the values
  bool from_zero = false;  // the axis begins at 0; else at the smallest value
};
std::string line_chart(const std::vector<Curve>& curves, const Axis& axis, std::string_view title);

// A bar of parts in `unit` that add up. `parts` have the same meaning in all bars, in the order of the classes p0, p1
// ...
struct Bar {
  std::string label;
  std::vector<double> parts;
  std::vector<std::string> titles = {};  // tooltips of the parts
};
std::string stacked_bars(const std::vector<Bar>& bars, std::string_view unit, std::string_view title);

// A row of cells over steps from `first` to `last`. A cell's value is from 0 (nothing) to 1 (the strongest colour).
struct HeatRow {
  std::string label;
  std::vector<double> values;
  std::vector<std::string> titles = {};
};
std::string heat_map(const std::vector<HeatRow>& rows, double first, double last, std::string_view title);

}  // namespace lockstep::launcher
