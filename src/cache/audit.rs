//! Checks of the cache's tables, for tests and checks of backends.

use super::KvCache;
use crate::backend::Measure;
use crate::policy::Scope;

impl<B: Measure> KvCache<B> {
    /// Checks the pool's reference counts against the page tables and returns the number of
    /// distinct pages in use.
    pub fn audit(&self, b: &B) -> Result<usize, String> {
        let g = self.geometry();
        let mut table = vec![0; g.n_layers * g.n_lanes() * g.max_pages];
        b.read(&self.tables.page_table, 0, &mut table);
        let refs = b.page_refs(&self.tables);
        let mut counted = vec![0u32; refs.len()];
        for seq in 0..g.n_seqs {
            self.audit_layers(b, seq)?;
            for (live, lane) in self.live_lanes(b, seq) {
                let row = g.row(lane.layer, seq, lane.head);
                let entries = &table[row * g.max_pages..(row + 1) * g.max_pages];
                let held = live.div_ceil(g.of_layer(lane.layer).page_slots);
                for (i, &page) in entries.iter().enumerate() {
                    match (i < held, page) {
                        (true, page) if page < 0 || page as usize >= refs.len() => {
                            return Err(format!("lane {row}: entry {i} names page {page}, which does not exist"));
                        }
                        (true, page) => counted[page as usize] += 1,
                        (false, -1) => {}
                        (false, page) => {
                            return Err(format!("lane {row}: entry {i} beyond its slots names page {page}"));
                        }
                    }
                }
            }
        }
        if let Some(page) = (0..refs.len()).find(|&p| refs[p] != counted[p]) {
            return Err(format!("page {page} is held {} times and counted {}", counted[page], refs[page]));
        }
        Ok(counted.iter().filter(|&&c| c > 0).count())
    }

    /// Fails if the lanes of a layer differ under a policy that drops tokens by layer.
    fn audit_layers(&self, b: &B, seq: usize) -> Result<(), String> {
        let g = self.geometry();
        if g.policy.scored().is_none_or(|rule| rule.scope == Scope::Head) {
            return Ok(());
        }
        let lane = |layer, head| b.slot_metas(&self.tables, layer, seq, head);
        let differs = |&layer: &usize| (1..g.n_kv_heads).any(|head| lane(layer, head) != lane(layer, 0));
        match (0..g.n_layers).find(differs) {
            Some(layer) => Err(format!("the lanes of layer {layer} store other tokens than each other")),
            None => Ok(()),
        }
    }
}
