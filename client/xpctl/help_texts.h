// What --help says below the list of options: of xpctl itself, and of its commands.
#pragma once

namespace xp::ctl {

inline constexpr char kMainFooter[] = R"help(
Environment:
  EXPERTPACK_SOCKET         Socket of the daemon, unless --socket names one
                            (default: /run/expertpackd/expertpackd.sock)
  NO_COLOR                  No colours, when set and not empty
  TERM=dumb                 No colours, progress lines and line editing
  XDG_STATE_HOME            expertpack/chat_history is below it (default: ~/.local/state)

Results go to standard output, messages to standard error. With --json a result is JSON, and
the reason of a failure is one object on standard error:
  {"error":{"code":"busy","message":"..."}}
Standard output holds a result or nothing; of a cancelled request, the result so far. A wrong
command line is told in words.

Exit status: 0 ok, 1 failed, 2 wrong usage, 69 no daemon answers, 75 daemon busy (try
again), 130 interrupted.

Examples:
  xpctl generate "What is 17 + 25?"
  xpctl chat --think
  xpctl perplexity book.txt --window 1024
  xpctl stats --watch
  xpctl cancel 3.17

'xpctl COMMAND --help' describes a command.)help";

inline constexpr char kScoreFooter[] = R"help(
How likely each token of a text is, given those before it. Nothing predicts the first token,
and nothing is added but BOS where the model's file asks for it: begin the text
as the model expects texts to begin.
The nll is the sum of the negative log-probabilities (natural logarithm) of all tokens but the
first, the perplexity is exp(nll / their number).

Prints a line per token: position, token id, log-probability, and the token that is likeliest
after it. --json prints one object: model, tokens, logprobs (null first), argmax, nll,
perplexity (null for a single token), last_logits (of the whole vocabulary, after the last
token), timings. Numbers read back as the same 32-bit floats; null stands for one that is not
finite, as it does for the nll and perplexity then.

Examples:
  xpctl score "The capital of France is Paris."
  xpctl score --json --no-logits --ids 1,2,3 | jq .nll)help";

inline constexpr char kPerplexityFooter[] = R"help(
Scores a text in windows of N tokens, each S tokens after the one before. Every token but the
first is scored exactly once, with at least N - S tokens before it except in the first window:
a smaller stride is slower and nearer to the model's best. Figures are comparable for the same
file, model, window and stride. What stands behind the ± is the standard error.

Ctrl-C prints the figure of what has been scored so far, and exits with 130; --json says
"complete": false then.
--json prints one object: model, perplexity, standard_error, nll, tokens (scored), text_tokens,
window, stride, windows, complete.

Examples:
  xpctl perplexity book.txt
  xpctl perplexity --window 1024 --stride 128 --json - < book.txt)help";

inline constexpr char kTokenizeFooter[] = R"help(
Prints the ids separated by commas, as --ids takes them. The text may be longer than the
context. --json prints one object: model, tokens, count.

Examples:
  xpctl tokenize "Hello, world"
  xpctl tokenize --count - < book.txt)help";

inline constexpr char kStatsFooter[] = R"help(
--watch looks again every SECONDS (1 by default) and shows rates as well: on a terminal in
place, with --json as one object per line with a member "rates". It waits for a daemon that
restarts. Ctrl-C ends it, with exit status 0.)help";

inline constexpr char kCancelFooter[] = R"help(
IDs are those that 'xpctl clients' shows: 3.17 is request 17 of client 3, 3 stands for all
requests of client 3. The request ends for its program as if it had cancelled it itself.
All IDs are tried; the exit status is 1 when there was nothing to cancel for one of them.
--json prints one object: cancelled (IDs), failed (objects of id, code, message).)help";

inline constexpr char kGenerateFooter[] = R"help(
The words of the prompt are joined by blanks; put -- before words that begin with a dash.
With -, or without a prompt when standard input is no terminal, it is read from there: as it
is with --raw, without one newline at its end in a chat.

With --think the model reasons first: --effort says how much where its chat format knows how to
say it. DeepSeek-V4 hears of high and max only, Kimi-K3 of all three.

Text appears as it is generated. On a terminal its control characters are left out, and the
model's reasoning, the progress of a long prompt and the timings go to standard error; when
standard error is no terminal, only messages go there. Ctrl-C cancels and waits for the
daemon's confirmation, a second one exits at once.

--json prints one object: model, text, reasoning, tool_calls (objects of name and arguments),
tokens, prompt_tokens, finish_reason (stop, length, tool_calls, cancelled), seed, logprobs,
timings.

Examples:
  xpctl generate What is 17 + 25?
  xpctl generate --think --max-tokens 500 - < question.txt
  xpctl generate --json --temperature 0 Hello | jq -r .text)help";

inline constexpr char kChatFooter[] = R"help(
On a terminal: lines can be edited, and come back with the arrow keys. A line that ends with
\ goes on in the next one, and """ begins and ends a text of several lines. Ctrl-C stops an
answer and keeps what came of it; Ctrl-D or /quit ends. /help lists the commands.

When standard input is no terminal, messages are read from it in the same way, only the
answers are printed, and the first message that cannot be answered ends the chat, as does
the first /command that fails: with status 2 when the line is wrong, 1 or what else applies
(see 'xpctl --help') when it cannot be done, such as /load of a file that is not there.

Lines typed are kept in $XDG_STATE_HOME/expertpack/chat_history (~/.local/state by default),
readable by their owner only. Conversations are not kept, unless saved with /save.

Examples:
  xpctl chat --system 'Answer in one sentence.' --temperature 0.6
  printf '%s\n' 'What is 17 + 25?' 'What day comes after Wednesday?' | xpctl chat)help";

}  // namespace xp::ctl
