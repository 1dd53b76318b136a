//! dmschat: a terminal chat that runs DMS models with a compact, paged, per-head KV cache.
//!
//! # The way of a token
//!
//! ```text
//! ui --Command--> engine::worker -> scheduler -> model::Step -> cache -> backend op
//!    <--Event---- detokenizer <- sampler <- logits row <---------------------'
//! (beside it, latest wins: Snapshot, the numbers of the panels)
//! ```
//!
//! One straight line; nothing calls back up.
//!
//! # The rooms, and who may use whom
//!
//! | module | owns | may use |
//! | --- | --- | --- |
//! | [`cli`] | flags, subcommands; the one place that names a concrete backend, loads, spawns | everything |
//! | [`bench`] | speed of prefill and decode on any backend | engine, checkpoint, cache, sampler, policy, codec, quant, tensor, protocol, the backend trait |
//! | [`predictor`] | fits a predictor of tokens' importance to a model, and finds its threshold | engine, model, checkpoint, tokenizer, policy, protocol, sampler, codec, cores, the backend trait |
//! | [`ui`] | the terminal: state, update, view, keys, themes | protocol, config, chat, policy, codec, system, regular_file, unicode, web, words |
//! | [`serve`] | the server: HTTP endpoints for other programs, the queue in front of the engine | protocol, config, chat, tokenizer |
//! | [`remote`] | a server with OpenAI's API in the place of an engine's thread: the same commands and events | protocol, policy, random, unicode |
//! | [`engine`] | the thread that runs a model: scheduler, conversations, turns, token log, snapshots, events | protocol, model, cache, checkpoint, quantize, sampler, grammar, tokenizer, policy, codec, quant, system, unicode, vote, random, the backend trait |
//! | [`model`] | the only transformer: weights, workspace, forward | protocol, cache, checkpoint, tensor, policy, the backend trait |
//! | [`cache`] | sequences over lanes and pages: fork, release, toggle, statistics; files of them | protocol, policy, codec, regular_file, cores, the backend trait |
//! | [`backend`] | traits `Device`, `Ops`, `Pages`, `FarPages`, `Report`, together `Backend`: every op's contract; `backend::cpu`; `backend::cuda` (PTX of `kernels/`) | protocol, policy, codec, quant, sampler, tensor, system, cores, random |
//! | [`chat`] | conversation, template, session store, transcripts | protocol, policy, codec, regular_file, system, unicode, words |
//! | [`tokenizer`] | pieces to ids, ids to text | protocol, unicode |
//! | [`grammar`] | which tokens may follow in an answer by a schema or a grammar | protocol, tokenizer |
//! | [`sampler`] | logits row to token, seeded | protocol, random |
//! | [`quantize`] | weights in fewer bits: conversion, its cache, importance of columns | checkpoint, hub, quant, tensor, regular_file, unicode, cores |
//! | [`checkpoint`] | models: folders, GGUF files, the built-in one: config, tensors, adapters, templates; which files of a repository one needs | hub, protocol, policy, quant, tensor, regular_file, unicode, cores |
//! | [`catalogue`] | known models by short names, and facts about their downloads | checkpoint, regular_file, unicode |
//! | [`hub`] | names of models, the Hugging Face cache, downloads of files | regular_file, unicode |
//! | [`config`] | TOML, environment and flags; profiles | protocol, policy, codec, quant, regular_file, unicode, words |
//! | [`system`] | the process itself: its end without exit handlers, without memory, after SIGBUS; signals, the terminal, children; a clock without stops | nothing of ours |
//! | [`web`] | the text of a web page that a person names: fetched from public addresses only, HTML as text | nothing of ours |
//! | [`tensor`] | a named block of a model file, in any format | quant |
//! | [`protocol`] | plain data between front ends and the engine | policy, codec, words |
//! | [`policy`], [`codec`], [`quant`] | plain data and pure maths | words, random |
//! | [`vote`] | which of several answers most of them agree on | unicode |
//! | [`regular_file`], [`unicode`], [`words`], [`cores`], [`random`] | bounded reads of files from outside, whole or no writes; which characters may be shown, ends of texts, and messages of one line; values with a text form; work on several threads; seeded random numbers, and a seed | nothing of ours |
//!
//! `tests/it/tidy.rs` reads every `crate::` path and fails on any other edge.
//!
//! `lab/` is a separate crate, the program `dmslab`: it scores, compares, evaluates, checks and
//! times the library. It may use everything in it, and is not part of the product.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | lane | one KV head of one sequence in one layer; warp lanes are always called that |
//! | slot | place of one token's K and V in a lane, numbered from 0 without holes |
//! | page | 16 slots of one lane, the unit of allocation; forks share pages copy-on-write |
//! | position | index of a token in its sequence; it stays with the token's slot |
//! | decision | a head's number for a token; positive marks |
//! | mark | set on a token that leaves the cache once it is outside the window |
//! | window | W: a marked token stays visible to the W tokens after it |
//! | ring | slots of the newest W + 1 tokens of a lane |
//! | sinks | first tokens of a sequence that are never marked |
//! | importance | of a token to a KV head: the largest attention that a repetition of the text pays to it, times the norm of its value behind the output projection, over that of the query's hidden state |
//! | state | what a sequence has in a layer that is a gated delta net instead of attention: a matrix per head, of fixed size |
//! | live | stored in a slot; *retention* is live slots / tokens fed, the *compression ratio* its inverse |
//! | policy | which slots live: [`policy`] |
//! | budget | slots that a policy lets a lane store, or a query read |
//! | far page | 32 rows that have left a lane, kept in host memory; *near* while attention reads it: [`policy::far`] |
//! | choice | between two steps, of the far pages that a sequence reads from there on, by its newest queries |
//! | merge | one slot for consecutive tokens of a head: the weighted means of their K and V |
//! | score | attention weights that a slot has had, by which TOVA and H2O choose what they drop |
//! | codec | how a slot stores K and V: [`codec`] |
//! | chain | one sequence and the work on it: entries of a log to feed, an answer to generate |
//! | conversation | a chain and its requests; an engine serves several |
//! | prefill chunk, decode step | a step over tokens of one chain; a step over one token of each decoding chain |
//! | probe | what works beside a conversation's answers on a sequence of its own, and changes nothing of it: recall, an answer aside, the dial's trial |
//! | dial | the threshold of decisions, which steers how much is kept; users set it by `--keep-ratio` and `/forget` |
//! | preempt | release a chain's pages and feed its log again when there is room |
//! | draft | a token that may follow, tried in the same step as the token before it |
//! | staged | of a step's rows: attended to, but not stored until they are committed |
//! | step | one forward pass over *spans*, runs of tokens of one sequence each |
//! | fork | a sequence that shares another's pages |
//! | chains, width | W answers to one question, forks of one prompt that decode together; a vote chooses one |
//! | checkpoint | the files of a model |
//! | snapshot | a fork of a conversation to go back to; to a front end, the numbers of the panels |
//! | token log | tokens fed and toggles between them, from which a cache can be filled again |
//!
//! # Seams
//!
//! - A *policy* decides for one lane and token: who is marked, who sees it, where the next token
//!   goes. `policy::Dms` marks ahead of time; dense is its absence, window is the same rule with
//!   constant decisions. `policy::Scored` (TOVA, H2O) drops by attention weights, token after
//!   token. `policy::Merging` (pool, DMC) chooses the tokens that share a slot, and replaces their
//!   rows before DMS's rule places them. `policy::Quest` chooses the pages that a query reads. On a
//!   GPU the policy is data of the cache's view and no template parameter, so that kernels have one
//!   instance per codec and head size.
//! - A *code* ([`quant`]) defines one group of 64 weights: its word, and how its codes are chosen.
//!   No op of a backend knows about formats of weights. [`quant::file`] has the codes of GGUF
//!   files.
//! - A *codec* defines one row: its bytes, encode, decode. Offsets inside a page come from
//!   [`backend::PageLayout`]; only encode and attention's loads depend on the codec.
//! - [`backend::Ops::attention`] and [`backend::Ops::linear`] define what a layer computes. The CPU
//!   composes it of plain loops. [`backend::cuda`] decides how many kernels run it on a GPU and
//!   what they fuse, and is checked against the CPU.
//! - `docs/extending.md` says how to add a codec, a policy, a weight format, a model family or a
//!   slash command.
//!
//! # Invariants
//!
//! - One forward pass, one cache, one prefill path: `prefill(T)` equals T decodes in live sets,
//!   slot numbers and counts, over any mix of chunks, turns and toggles. Quest alone reads
//!   differently in steps of one token, and conversations do not have it.
//! - On the CPU, `prefill(T)` equals T decodes bit for bit, for every policy, codec and format of
//!   weights, in any chunks and with any number of threads: a row's results do not depend on the
//!   rows beside it. On a GPU they do, by rounding, and chunks have the size that
//!   [`backend::About::chunk_tokens`] fixes, so that a log still gives one state.
//! - A staged step changes only its own buffers; committing it stores the same data as single
//!   steps.
//! - A step allocates nothing and reads nothing back but [`backend::Ops::read_step`]; on the CPU,
//!   far pages grow in it.
//! - What a conversation says and stores does not depend on the conversations that run beside it.
//! - The token log, not the text, is the truth; generated tokens are never encoded again.
//! - What a person types never becomes a control token. A program that continues a text writes its
//!   template itself (`/v1/completions`).
//! - No exit handler of the process runs beside a live engine: `cli::main` joins every engine's
//!   thread, or exits without handlers.
//! - Connections are opened in `hub`, only for a hub id that is not in the cache, in [`remote`],
//!   only to the server that the settings name, and in [`web`], only for a page that a person has
//!   named in a message (or confirmed, if it was not typed), and only to public addresses or one
//!   that was typed as a number. They are accepted in [`serve`] only.
//! - What a person attaches is text of the message. Nothing of it is carried out.
//! - `unsafe` is in `backend::cpu::{simd, thread_pool}`, `backend::cuda`, `checkpoint::mapped`,
//!   `quant::vectorize` and `system` only.

pub mod backend;
pub mod bench;
pub mod cache;
pub mod catalogue;
pub mod chat;
pub mod checkpoint;
pub mod cli;
pub mod codec;
pub mod config;
pub mod cores;
pub mod engine;
pub mod grammar;
pub mod hub;
pub mod model;
pub mod policy;
pub mod predictor;
pub mod protocol;
pub mod quant;
pub mod quantize;
pub mod random;
pub mod regular_file;
pub mod remote;
pub mod sampler;
pub mod serve;
pub mod system;
pub mod tensor;
pub mod tokenizer;
pub mod ui;
pub mod unicode;
pub mod vote;
pub mod web;
pub mod words;
