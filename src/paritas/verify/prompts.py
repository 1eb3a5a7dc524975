"""The texts that are asked: the five prompts of a public bug report, and a long text in several scripts."""

PROMPTS = (
    "What is the capital of France?",
    "The quixotic archaeologist discovered peculiar hieroglyphic anomalies.",
    "你好! What is the capital of France?",
    "من است یک دو سه نان",
    "پایتخت ایران کجاست؟",
)
"""Plain English, rare words, Chinese and English, and two in Persian (microsoft/onnxruntime-genai#2277)."""

LONG_TEXT = (
    "The ferry left the old harbour at a quarter past six, with eleven passengers, two bicycles and a crate "
    "of lemons. Nobody spoke until the lighthouse was behind them; then the captain's daughter asked what 17 times "
    "23 might be, and three people answered at once. Am anderen Ufer wartete schon der Bäcker mit warmem Brot. "
    "Зимой здесь тихо, и каждый дом слышит море. 港に着くと、雨はもう止んでいた。"
    "老师说:\u201c先看清楚问题,再回答。\u201d قایق آرام به اسکله رسید و همه پیاده شدند. "
    "वहाँ की चाय बहुत मीठी थी। In the evening they wrote down what they had seen: "
    "`for i in range(3): print(i)`, a heron, €4.50 for the crossing, and a sky the colour of slate. "
)
"""Repeated to the length that a probe needs."""
