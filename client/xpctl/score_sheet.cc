#include "client/xpctl/score_sheet.h"

namespace xp::ctl {

void ScoreSheet::add(const xp_event& event) {
    switch (event.type) {
        case XP_EVENT_ACCEPTED:
            model_ = event.model;
            tokens_.assign(event.prompt_tokens, event.prompt_tokens + event.prompt_token_count);
            break;
        // Parts come in order; one that does not fit on the last leaves the sheet short, which
        // whoever counts the positions notices.
        case XP_EVENT_SCORES:
            if (event.first != scores_.size()) break;
            scores_.insert(scores_.end(), event.scores, event.scores + event.score_count);
            break;
        case XP_EVENT_LOGITS:
            if (event.first != logits_.size()) break;
            logits_.insert(logits_.end(), event.logits, event.logits + event.logit_count);
            break;
        default:
            break;
    }
}

}  // namespace xp::ctl
