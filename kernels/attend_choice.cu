// Decode attention that chooses: attend.cuh, which under a policy with scores also writes the
// logits of the stored slots, 4 bytes for each query head and slot, and otherwise reads the pages
// that `select_pages` has chosen. There every query head of a group sees its own pages alone; those
// of the group are read once. One instance a codec, for heads of up to 128 channels. CPU twins:
// `backend::cpu::attention::in_order`, `paged`.
#include "attend.cuh"

#define OF_CODEC(codec, Codec) ATTEND(attend_choice_128_##codec, 128, Codec, WithChoice)
FOR_EACH_CODEC(OF_CODEC)
