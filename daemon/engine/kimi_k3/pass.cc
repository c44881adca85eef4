// The Kimi-K3 graph. Every row has a stream P and a bank of earlier streams, empty at first; mix()
// averages P and the bank by what a layer's score vector says of them. Per layer:
//
//   x = norm(mix(P));  in a block's first layer P goes into the bank and restarts from nothing
//   P = P + Attention(x)
//   x = norm(mix(P));  P = P + FeedForward(x)
//
// then logits = output · norm(mix(P)). Attention is delta attention (a matrix per head, constant in
// size) or, in some layers, latent attention over all positions. What a layer gave is added to P
// together with the mix that follows.
#include "daemon/engine/kimi_k3/pass.h"

#include <cmath>

namespace xp {

KimiK3Pass::KimiK3Pass(KimiK3Model& model, std::span<const Row> rows,
                       std::vector<SequenceSpan> spans, std::unique_ptr<KimiK3Workspace> workspace,
                       const PassObserver* observer)
    : LayeredPass({model.config_.n_layers, model.config_.n_vocab, model.config_.top_k},
                  model.operators_, *model.cache_, rows, std::move(spans), observer),
      model_(model),
      work_(std::move(workspace)) {}

KimiK3Pass::~KimiK3Pass() { model_.workspaces_.give_back(std::move(work_)); }

void KimiK3Pass::begin() { embed(model_.embedding_, 1, work_->stream); }

ResidualMixArgs KimiK3Pass::residual() const {
    const KimiK3Config& c = model_.config_;
    ResidualMixArgs args;
    args.stream = work_->stream;
    args.bank = work_->bank;
    args.bank_rows = c.bank_rows();
    args.n_banked = n_banked_;
    args.epsilon = c.epsilon;
    args.dim = c.dim;
    return args;
}

const PackLayer* KimiK3Pass::begin_layer() {
    const KimiK3Config& c = model_.config_;
    const KimiK3Layer& l = layer();
    ResidualMixArgs before = residual();
    if (update_left_) {
        before.given[0] = work_->out;
        before.given[1] = layer_ > c.n_dense ? work_->shared : nullptr;
    }
    before.keep = c.banks(layer_);
    before.score = l.attention_score;
    before.norm = l.attention_norm;
    before.y = work_->x;
    ops_.residual_mix(before, n_rows());
    if (before.keep) ++n_banked_;

    if (c.latent[layer_]) {
        latent_attention();
    } else {
        delta_attention();
    }
    ResidualMixArgs between = residual();
    between.given[0] = work_->out;
    between.restart = before.keep;
    between.score = l.ffn_score;
    between.norm = l.ffn_norm;
    between.y = work_->x;
    ops_.residual_mix(between, n_rows());

    if (l.experts == nullptr) {
        ops_.matmul_gated(l.gate, l.up, work_->x, n_rows(), c.activation, work_->mid);
        ops_.matmul(l.down, work_->mid, n_rows(), work_->out);
    }
    return l.experts;
}

void KimiK3Pass::delta_attention() {
    const KimiK3Config& c = model_.config_;
    const KimiK3Layer& l = layer();
    const uint32_t n = n_rows();
    const Product products[] = {{l.q, work_->q},      {l.k, work_->k},
                                {l.v, work_->v},      {l.out_gate, work_->out_gate},
                                {l.f_a, work_->low},  {l.beta, work_->beta}};
    ops_.matmuls(products, work_->x, n);
    ops_.matmul(l.f_b, work_->low, n, work_->gate);

    std::vector<ConvSegment> conv;
    std::vector<DeltaSegment> segments;
    for (const SequenceSpan& span : spans_) {
        KimiK3Sequence::LayerState& state = state_of(span);
        conv.push_back({span.first_row, span.n_rows, state.history.as<float>()});
        segments.push_back({span.first_row, span.n_rows, state.delta.as<float>()});
    }
    const ConvInput inputs[] = {{work_->q, l.conv_q}, {work_->k, l.conv_k}, {work_->v, l.conv_v}};
    ops_.short_conv({inputs, c.delta_width(), c.conv_taps, conv});
    ops_.delta_attention({.q = work_->q, .k = work_->k, .v = work_->v, .gate = work_->gate,
                          .gate_bias = l.gate_bias, .decay = l.decay,
                          .lower_bound = c.lower_bound, .beta = work_->beta,
                          .out_gate = work_->out_gate, .norm = l.head_norm, .epsilon = c.epsilon,
                          .n_heads = c.n_heads, .dim = c.delta_dim, .segments = segments,
                          .out = work_->attended});
    ops_.matmul(l.out, work_->attended, n, work_->out);
}

void KimiK3Pass::latent_attention() {
    const KimiK3Config& c = model_.config_;
    const KimiK3Layer& l = layer();
    const uint32_t n = n_rows();
    const Product products[] = {{l.q_a, work_->low}, {l.kv_a, work_->kv},
                                {l.out_gate, work_->out_gate}};
    ops_.matmuls(products, work_->x, n);
    const Product q = {l.q_b, work_->q};
    ops_.normed_matmuls({&q, 1}, work_->low, l.q_a_norm, c.epsilon, n);
    // Keys of a head are products of the latent row: taken to the queries instead.
    ops_.matmul_grouped(l.k_b, c.n_heads, work_->q, n, work_->q_latent, c.key_dim);

    std::vector<LatentSegment> segments;
    for (const SequenceSpan& span : spans_) {
        segments.push_back({span.first_row, span.n_rows, span.sequence->position(),
                            state_of(span).rows.data()});
    }
    ops_.latent_attention({.q_latent = work_->q_latent, .q = work_->q, .kv = work_->kv,
                           .norm = l.kv_norm, .epsilon = c.epsilon,
                           .kv_type = model_.options_.kv, .n_heads = c.n_heads,
                           .latent = c.kv_rank, .tail = c.tail, .q_dim = c.key_dim,
                           .scale = 1 / std::sqrt(static_cast<float>(c.key_dim)),
                           .segments = segments, .out = work_->context});
    ops_.matmul_grouped(l.v_b, c.n_heads, work_->context, n, work_->attended);
    ops_.sigmoid_gate(work_->out_gate, uint64_t{n} * c.value_width(), work_->attended);
    ops_.matmul(l.out, work_->attended, n, work_->out);
}

// Chooses the experts of every row, by the whole row.
void KimiK3Pass::route() {
    const KimiK3Config& c = model_.config_;
    const KimiK3Layer& l = layer();
    ops_.matmul(l.router, work_->x, n_rows(), work_->router);
    ops_.route({.score = RouterScore::kSigmoid, .logits = work_->router, .bias = l.router_bias,
                .host_fixed = fixed_ids(),
                .normalise = c.expert_normalise, .scale = c.expert_scale,
                .n_experts = l.experts->n_experts, .top_k = c.top_k,
                .weights = work_->expert_weights},
               n_rows());
}

// What routed experts take in, and the shared ones.
void KimiK3Pass::beside_experts() {
    const KimiK3Layer& l = layer();
    ops_.matmul(l.routed_down, work_->x, n_rows(), work_->latent);
    ops_.matmul_gated(l.gate, l.up, work_->x, n_rows(), model_.config_.activation, work_->mid);
    ops_.matmul(l.down, work_->mid, n_rows(), work_->shared);
}

ExpertArgs KimiK3Pass::expert_args() {
    ExpertArgs args;
    args.x = work_->latent;
    args.weights = work_->expert_weights;
    args.activation = model_.config_.activation;
    args.weigh_outputs = true;
    args.out = work_->expert_out;
    return args;
}

// What the layer gave is put into the stream by the next layer's first operator, unless the stream
// itself is asked for.
void KimiK3Pass::finish_layer() {
    const KimiK3Config& c = model_.config_;
    const KimiK3Layer& l = layer();
    if (l.experts != nullptr) {
        ops_.sum_slots(work_->expert_out, n_rows(), c.top_k, c.latent_dim, work_->routed);
        const Product up = {l.routed_up, work_->out};
        ops_.normed_matmuls({&up, 1}, work_->routed, l.routed_norm, c.epsilon, n_rows());
    }
    update_left_ = layer_ + 1 < c.n_layers && !observer_.layer_done;
    if (update_left_) return;
    ResidualMixArgs update = residual();
    update.given[0] = work_->out;
    update.given[1] = l.experts != nullptr ? work_->shared : nullptr;
    ops_.residual_mix(update, n_rows());
}

std::vector<float> KimiK3Pass::state() {
    return downloaded(work_->stream, uint64_t{n_rows()} * model_.config_.dim);
}

// The streams and banks of the rows that asked are moved together first.
Result<LogitsBuffers*> KimiK3Pass::head(std::span<const uint32_t> rows) {
    const uint64_t dim = model_.config_.dim;
    const uint64_t bank = dim * model_.config_.bank_rows();
    const auto n = static_cast<uint32_t>(rows.size());
    for (uint32_t i = 0; i < n; ++i) {
        if (rows[i] == i) continue;
        ops_.copy(work_->stream + rows[i] * dim, dim, work_->stream + i * dim);
        ops_.copy(work_->bank + rows[i] * bank, bank, work_->bank + i * bank);
    }
    ResidualMixArgs last = residual();
    last.score = model_.output_score_;
    last.norm = model_.output_norm_;
    last.y = work_->x;
    ops_.residual_mix(last, n);
    return logits_of(model_.output_, work_->x, n, work_->logits);
}

}  // namespace xp
