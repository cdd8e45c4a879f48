-- The one definition of the store (docs/store.md explains each table). Its version is kSchemaVersion in migrations.h.
--
-- 64-bit unsigned values are kept as the signed integer with the same bits; columns that are compared (steps) are
-- clamped to 2^63 - 1. A REAL that is NaN is kept as its eight bytes, because SQLite would turn it into NULL.

CREATE TABLE runs (
  id INTEGER PRIMARY KEY,               -- also the order of creation: the newest run has the greatest id
  owner_uid INTEGER NOT NULL,
  name TEXT NOT NULL,
  launch TEXT NOT NULL,
  ordinal INTEGER NOT NULL,             -- n-th launch of this name; shown as name#n from the second on
  state INTEGER NOT NULL,
  world_size INTEGER NOT NULL,
  created_ns INTEGER NOT NULL,
  updated_ns INTEGER NOT NULL,
  framework TEXT NOT NULL,
  frame_sequence INTEGER NOT NULL,      -- sequence of the last frame committed, over all ranks
  UNIQUE (owner_uid, name, launch),
  UNIQUE (name, ordinal)
);

CREATE TABLE ranks (
  id INTEGER PRIMARY KEY,
  run_id INTEGER NOT NULL REFERENCES runs (id),
  rank INTEGER NOT NULL,
  incarnation INTEGER NOT NULL,
  host TEXT NOT NULL,
  pid INTEGER NOT NULL,
  state INTEGER NOT NULL,
  last_step INTEGER NOT NULL,
  last_site INTEGER NOT NULL,
  records_produced INTEGER NOT NULL,
  records_received INTEGER NOT NULL,
  records_dropped INTEGER NOT NULL,
  segment_uuid BLOB NOT NULL,
  frames INTEGER NOT NULL,              -- frames committed, complete or not
  complete_frames INTEGER NOT NULL,     -- of these, the ones that a call of the optimizer ended: steps
  blocked_frames INTEGER NOT NULL,      -- of these, in blocks; the rest are in pending_frames
  pending_bytes INTEGER NOT NULL,       -- size of what is in pending_frames
  site_totals BLOB NOT NULL,            -- per site: records and last step
  UNIQUE (run_id, rank, incarnation)
);

-- What a restarted daemon needs to go on with a segment exactly where the last commit ended.
CREATE TABLE segments (
  uuid BLOB PRIMARY KEY,
  rank_id INTEGER NOT NULL REFERENCES ranks (id),
  lane_heads BLOB NOT NULL,
  assembler_state BLOB NOT NULL
) WITHOUT ROWID;

-- In the order of the manifest. `subject` is what an entry speaks about: a restarted daemon reads a manifest from its
-- start again, and an entry that repeats the newest one about its subject is not stored twice.
CREATE TABLE manifest_entries (
  id INTEGER PRIMARY KEY,
  rank_id INTEGER NOT NULL REFERENCES ranks (id),
  type INTEGER NOT NULL,
  subject INTEGER NOT NULL,
  body BLOB NOT NULL
);
CREATE INDEX manifest_entries_by_rank ON manifest_entries (rank_id, id);
CREATE INDEX manifest_entries_by_subject ON manifest_entries (rank_id, type, subject, id);

-- Frames that do not fill a block yet, one row each.
CREATE TABLE pending_frames (
  rank_id INTEGER NOT NULL REFERENCES ranks (id),
  sequence INTEGER NOT NULL,
  step INTEGER NOT NULL,
  data BLOB NOT NULL,
  PRIMARY KEY (rank_id, sequence)
) WITHOUT ROWID;

-- level 0: frames at full detail. level 16, 256, 4096: the roll-up of that many frames per bucket.
CREATE TABLE blocks (
  id INTEGER PRIMARY KEY,
  rank_id INTEGER NOT NULL REFERENCES ranks (id),
  level INTEGER NOT NULL,
  first_frame INTEGER NOT NULL,         -- ordinal within the rank
  frames INTEGER NOT NULL,
  min_step INTEGER NOT NULL,
  max_step INTEGER NOT NULL,
  last_sequence INTEGER NOT NULL,
  directory BLOB NOT NULL
);
CREATE UNIQUE INDEX blocks_by_rank ON blocks (rank_id, level, first_frame);

-- The values of a block: all sites of one record kind, a few neighbouring statistics a row.
CREATE TABLE packs (
  id INTEGER PRIMARY KEY,
  block_id INTEGER NOT NULL REFERENCES blocks (id),
  kind INTEGER NOT NULL,
  first_statistic INTEGER NOT NULL,     -- index within the kind
  last_statistic INTEGER NOT NULL,
  data BLOB NOT NULL
);
CREATE INDEX packs_by_block ON packs (block_id, kind, first_statistic);

CREATE TABLE fingerprints (
  block_id INTEGER PRIMARY KEY REFERENCES blocks (id),
  data BLOB NOT NULL
);

CREATE TABLE transitions (
  run_id INTEGER NOT NULL REFERENCES runs (id),
  id INTEGER NOT NULL,
  step INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  incarnation INTEGER NOT NULL,
  site INTEGER NOT NULL,
  phase INTEGER NOT NULL,
  statistic INTEGER NOT NULL,
  from_regime TEXT NOT NULL,
  to_regime TEXT NOT NULL,
  value REAL NOT NULL,
  expected_low REAL NOT NULL,
  expected_high REAL NOT NULL,
  severity INTEGER NOT NULL,
  PRIMARY KEY (run_id, id)
) WITHOUT ROWID;

-- The newest row of a run is its current diagnosis. Older rows are kept where the findings differed.
CREATE TABLE diagnoses (
  id INTEGER PRIMARY KEY,
  run_id INTEGER NOT NULL REFERENCES runs (id),
  findings TEXT NOT NULL,               -- verdict and hypotheses in short: equal findings replace the row
  recorded_ns INTEGER NOT NULL,
  verdict INTEGER NOT NULL,
  warm INTEGER NOT NULL,
  steps_seen INTEGER NOT NULL,
  ranks_seen BLOB NOT NULL,             -- varints
  through_steps BLOB NOT NULL DEFAULT x'' -- by position in ranks_seen: the last step that went in
);
CREATE INDEX diagnoses_by_run ON diagnoses (run_id, id);

CREATE TABLE hypotheses (
  diagnosis_id INTEGER NOT NULL REFERENCES diagnoses (id) ON DELETE CASCADE,
  position INTEGER NOT NULL,
  incident INTEGER NOT NULL,
  kind INTEGER NOT NULL,
  module TEXT NOT NULL,
  site INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  step INTEGER NOT NULL,
  detected_at_step INTEGER NOT NULL,
  phase INTEGER NOT NULL,
  confidence REAL NOT NULL,
  summary TEXT NOT NULL,
  remedy TEXT NOT NULL,
  PRIMARY KEY (diagnosis_id, position)
) WITHOUT ROWID;

CREATE TABLE evidence (
  diagnosis_id INTEGER NOT NULL REFERENCES diagnoses (id) ON DELETE CASCADE,
  hypothesis INTEGER NOT NULL,
  position INTEGER NOT NULL,
  site INTEGER NOT NULL,
  step INTEGER NOT NULL,
  statistic INTEGER NOT NULL,
  observed REAL NOT NULL,
  expected_low REAL NOT NULL,
  expected_high REAL NOT NULL,
  note TEXT NOT NULL,
  PRIMARY KEY (diagnosis_id, hypothesis, position)
) WITHOUT ROWID;

CREATE TABLE chain_links (
  diagnosis_id INTEGER NOT NULL REFERENCES diagnoses (id) ON DELETE CASCADE,
  hypothesis INTEGER NOT NULL,
  position INTEGER NOT NULL,
  site INTEGER NOT NULL,
  step INTEGER NOT NULL,
  phase INTEGER NOT NULL,
  share REAL NOT NULL,
  note TEXT NOT NULL,
  PRIMARY KEY (diagnosis_id, hypothesis, position)
) WITHOUT ROWID;

CREATE TABLE equivalents (
  diagnosis_id INTEGER NOT NULL REFERENCES diagnoses (id) ON DELETE CASCADE,
  hypothesis INTEGER NOT NULL,
  position INTEGER NOT NULL,
  text TEXT NOT NULL,
  PRIMARY KEY (diagnosis_id, hypothesis, position)
) WITHOUT ROWID;

CREATE TABLE notices (
  diagnosis_id INTEGER NOT NULL REFERENCES diagnoses (id) ON DELETE CASCADE,
  position INTEGER NOT NULL,
  step INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  kind INTEGER NOT NULL,
  module TEXT NOT NULL,
  text TEXT NOT NULL,
  PRIMARY KEY (diagnosis_id, position)
) WITHOUT ROWID;

CREATE TABLE blind_spots (
  diagnosis_id INTEGER NOT NULL REFERENCES diagnoses (id) ON DELETE CASCADE,
  position INTEGER NOT NULL,
  site INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  step INTEGER NOT NULL,
  text TEXT NOT NULL,
  PRIMARY KEY (diagnosis_id, position)
) WITHOUT ROWID;

-- The newest snapshot of a run's engine; frames with a greater sequence are not in it.
CREATE TABLE engine_snapshots (
  run_id INTEGER PRIMARY KEY REFERENCES runs (id),
  frame_sequence INTEGER NOT NULL,
  snapshot BLOB NOT NULL
);
