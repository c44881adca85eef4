// What came of a score request, collected from its events.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/expertpack.h"

namespace xp::ctl {

class ScoreSheet {
public:
    void add(const xp_event& event);

    const std::string& model() const { return model_; }
    const std::vector<int32_t>& tokens() const { return tokens_; }  // empty: too many to be told
    const std::vector<xp_score>& scores() const { return scores_; }
    const std::vector<float>& logits() const { return logits_; }

private:
    std::string model_;
    std::vector<int32_t> tokens_;
    std::vector<xp_score> scores_;
    std::vector<float> logits_;
};

}  // namespace xp::ctl
