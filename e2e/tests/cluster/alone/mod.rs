//! Tests that disturb the whole cluster; they run one after the other, in this order of names.

mod a_quiet;
mod b_kills;
mod c_deletions;
mod d_chart;
mod e_docs;
mod f_control;
