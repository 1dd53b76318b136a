//! `dmslab eval`: accuracy against the cost of the cache. Several chains answer the problems of
//! several tasks under several policies. The results are points of accuracy over KV reads and over
//! peak memory.
//!
//! | module | does |
//! | --- | --- |
//! | [`tasks`] | makes problems from a seed, or reads them from a file |
//! | [`problem`] | one problem: its messages, and which answers are right |
//! | [`language`] | problem to prompt tokens, sampled tokens to answer |
//! | [`sample`] | samples the chains of a group of problems in one batch |
//! | [`record`] | what is kept of each problem, in a file that only grows |
//! | [`grid`] | points (length, width, compression) from the records |
//! | [`latency`], [`matmul`] | time of decode steps by a model of the machine |
//! | [`report`] | a table of the points; `lab/report.py` makes frontiers, margins and plots |
//! | [`run`] | the command: what is asked of a run, its problems answered on a device |
//! | [`problem_file`] | without a folder for results: answers to a file of problems |

pub mod grid;
pub mod language;
pub mod latency;
pub mod matmul;
pub mod problem;
pub mod problem_file;
pub mod record;
pub mod report;
pub mod rng;
pub mod run;
pub mod sample;
pub mod tasks;
