// Reads the leaves of a call's nested dicts as column inputs of a WriterCall, without flattening the dicts in Python.
// Everything here runs with the GIL held.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "bindings/bindings.h"

namespace di::py {

struct CallShape {  // the leading axes of a call's leaves, before the column's own shape
  u32 steps = 1;
  u64 lanes = 1;
  bool time = false;     // there is an axis of steps, the first one
  bool by_lane = false;  // there is an axis of lanes
  bool or_bare = false;  // of a call with one cell: a number may lack these axes

  u64 cells() const { return steps * lanes; }
};

class Cells {
 public:
  Cells(nb::handle columns, nb::object coerce, std::vector<u32> final_columns);

  // Begins a new call.
  void begin();
  // Ends the call: releases the objects that its inputs point into.
  void end() { keep_.clear(); }
  // Makes one input for every column; inputs of columns that `tree` lacks have neither base nor cells. The objects that
  // the inputs point into live until end(), even if the program takes them out of the tree meanwhile (in another
  // thread, or during the conversion of a value).
  void parse(nb::handle tree, const CallShape& shape, std::vector<ColumnInput>* inputs);
  // `final` has one of two forms. It is a dict like next=, for all lanes of the call or only for those that have
  // `ended` (one flag a lane; empty: not known). Or it is Gymnasium's final_obs: an object array with None for lanes
  // that did not end, for the lanes of the call or for `all_lanes` of the writer.
  void parse_final(nb::handle final, const CallShape& shape, u32 all_lanes, const std::vector<u8>& ended,
                   WriterCall* call);

  const std::string& name(std::size_t column) const { return columns_[column].name; }
  std::size_t count() const { return columns_.size(); }
  std::vector<u64> row_bytes() const;   // by column: bytes of one row's value; 0: values of any size
  u64 bytes() const { return bytes_; }  // about how many bytes this call writes

 private:
  struct Column {
    std::string name;
    nb::object dtype;
    PyArray_Descr* descr = nullptr;  // what `dtype` holds
    std::vector<npy_intp> shape;
    bool ragged = false;
    bool reward = false;
    u64 bytes = 0;
    i64 max_rows = -1;  // ragged: the largest length; -1: no bound
  };
  struct Node {  // one level of the nested dict
    nb::object key;
    std::string path;
    u32 column = kNone;
    std::vector<Node> children;
  };
  using CellTable = std::vector<std::vector<Cell>>;  // by column: empty, or one for each step and lane of the call

  static Column read_column(nb::handle entry);
  Node* grow(nb::handle path);
  void parse_node(const Node& node, nb::handle dict, const CallShape& shape, std::vector<ColumnInput>* inputs);
  [[noreturn]] static void refuse_unknown(const Node& node, nb::handle dict);
  void leaf(u32 column, nb::handle value, const CallShape& shape, ColumnInput* input);
  void coerced(u32 column, nb::handle value, const npy_intp* lead, int leads, u64 count, ColumnInput* input);
  bool exact(const Column& column, nb::handle value, const npy_intp* lead, int leads, ColumnInput* input);
  bool scalar(const Column& column, nb::handle value, ColumnInput* input);
  static bool exact_row(const Column& column, nb::handle value);
  bool ragged_rows(u32 column, nb::handle value, int leads, u64 count, ColumnInput* input);
  void listed(u32 column, const nb::list& list, ColumnInput* input, u64 count);
  void final_value(u32 column, nb::handle value, u64 cell, u64 cells, CellTable* table);
  bool final_of_ended(nb::handle final, const CallShape& shape, const std::vector<u8>& ended, WriterCall* call);
  void final_item(nb::handle item, u64 cell, u64 cells, CellTable* table);
  bool fits(const Node& node, nb::handle dict) const;
  const Node& final_node(nb::handle item) const;
  void final_tree(const Node& node, nb::handle dict, u64 cell, u64 cells, CellTable* table);

  std::vector<Column> columns_;
  Node root_;
  nb::object coerce_;
  std::vector<u32> final_columns_;
  // The data that this call's inputs point into. scalars_ must not reallocate: begin() reserves one entry a column for
  // each of three trees (step, next, final).
  std::vector<UserObject> keep_;
  std::vector<std::vector<Cell>> cells_;
  std::vector<std::array<u8, 16>> scalars_;
  u64 bytes_ = 0;
};

}  // namespace di::py
