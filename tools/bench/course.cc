#include "tools/bench/course.h"

#include <algorithm>
#include <chrono>

namespace xp {
namespace {

// Adds what happened between two states of the cache.
void add(Sample& sample, const CacheStats& before, const CacheStats& after) {
    sample.read_bytes += after.read_bytes - before.read_bytes;
    sample.hits += after.hits - before.hits;
    sample.misses += after.misses - before.misses;
    sample.ram_hits += after.ram_hits - before.ram_hits;
    sample.uploaded_bytes += after.copied_bytes - before.copied_bytes;
    sample.saved_bytes += after.saved_bytes - before.saved_bytes;
}

void add_prompt(Course& course, uint32_t prompt, uint32_t chunk, uint32_t sample) {
    for (uint32_t done = 0; done < prompt; done += chunk) {
        course.passes.push_back({std::min(chunk, prompt - done), done == 0, sample});
    }
}

}  // namespace

Course Course::decode(uint32_t prompt, uint32_t warm, uint32_t tokens, uint32_t samples) {
    Course course;
    course.n_samples = samples;
    add_prompt(course, prompt, prompt, Pass::kNoSample);
    course.passes.insert(course.passes.end(), warm, Pass{});
    for (uint32_t sample = 0; sample < samples; ++sample) {
        course.passes.insert(course.passes.end(), tokens, Pass{.sample = sample});
    }
    return course;
}

Course Course::prefill(uint32_t prompt, uint32_t chunk, uint32_t samples) {
    Course course;
    course.n_samples = samples;
    add_prompt(course, prompt, chunk, Pass::kNoSample);
    for (uint32_t sample = 0; sample < samples; ++sample) add_prompt(course, prompt, chunk, sample);
    return course;
}

uint64_t Course::longest() const {
    uint64_t longest = 0, position = 0;
    for (const Pass& pass : passes) {
        position = (pass.fresh ? 0 : position) + pass.n_rows;
        longest = std::max(longest, position);
    }
    return longest;
}

Result<std::vector<Sample>> run_course(Rig& rig, const Course& course, const Routing* routing,
                                       Routing* record) {
    std::vector<Sample> samples(course.n_samples);
    std::unique_ptr<Sequence> sequence;
    for (const Pass& pass : course.passes) {
        if (pass.fresh) {
            sequence.reset();
            XP_TRY(sequence, rig.model->create_sequence());
        }
        const CacheStats before = rig.cache->stats();
        const uint64_t reads_before = rig.reads->stats().reads;
        const uint64_t repeated_before = rig.reads->repeated();
        rig.reads->begin_count();
        const OperatorCounts counts_before = rig.backend.operators->counts();
        Timeline* const timeline = pass.sample == Pass::kNoSample ? nullptr : rig.timeline;
        if (timeline != nullptr) timeline->begin_pass();
        const auto start = std::chrono::steady_clock::now();
        XP_CHECK(forward(rig, *sequence, pass.n_rows, routing, record));
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        if (timeline != nullptr) timeline->end_pass();
        if (pass.sample == Pass::kNoSample) continue;
        Sample& sample = samples[pass.sample];
        sample.seconds += took.count();
        sample.reads += rig.reads->stats().reads - reads_before;
        sample.repeated += rig.reads->repeated() - repeated_before;
        add(sample, before, rig.cache->stats());
        const OperatorCounts counts = rig.backend.operators->counts();
        sample.launches += counts.launches - counts_before.launches;
        sample.waits += counts.waits - counts_before.waits;
        sample.wait_us += counts.wait_us - counts_before.wait_us;
    }
    return samples;
}

Result<std::vector<Sample>> replay_course(Replay& replay, const Course& course,
                                          const Routing& routing) {
    std::vector<Sample> samples(course.n_samples);
    uint64_t position = 0;
    for (const Pass& pass : course.passes) {
        if (pass.fresh) position = 0;
        const CacheStats before = replay.stats();
        XP_CHECK(replay.pass(routing, position, pass.n_rows));
        position += pass.n_rows;
        if (pass.sample != Pass::kNoSample) add(samples[pass.sample], before, replay.stats());
    }
    return samples;
}

}  // namespace xp
